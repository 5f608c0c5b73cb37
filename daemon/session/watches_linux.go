package session

import (
	"errors"
	"fmt"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/quota"
	"github.com/exanet/pfd/shadow"
	"github.com/exanet/pfd/uffd"
)

// Parts of the descriptors that pfd may have (RLIMIT_NOFILE at its start), for each of three
// kinds that it keeps for users. Seven sixteenths remain for attachments (package attach).
// Values below are defined by this project.
const (
	userPart = 16 // a sixteenth for one user
	allPart  = 8  // an eighth for all users
)

// quotaOfFiles returns a Quota of resources that cost pfd a descriptor each.
func quotaOfFiles(per, all int) *quota.Quota {
	return quota.New(limits.Descriptors(per, userPart), limits.Descriptors(all, allPart), quota.Privileged)
}

// quotaOfShares returns the Quota of ranges that processes share. If the device has tables of
// them, pfd keeps the descriptor of each.
func quotaOfShares(f *Features) *quota.Quota {
	if f.Sharing != nil {
		return quotaOfFiles(sharesPerUID, allShares)
	}
	return quota.New(sharesPerUID, allShares, quota.Privileged)
}

// watch revokes the share at s.VA when the process unmaps a part of it. The process's munmap
// blocks until the device cannot access the share any more. The caller keeps fd.
func (h sharing) watch(s attach.Share, fd int) error {
	d, uid, w := h.s.d, h.s.uid, &h.s.watches
	if !d.watches.Take(uid) {
		return fmt.Errorf("pfd keeps %d userfaultfds for uid %d, or for all users together what it has descriptors for: "+
			"share fewer and larger ranges, or give pfd more descriptors (LimitNOFILE=, ulimit -n)", d.watches.Per(), uid)
	}
	holes, err := uffd.TakeHoles(fd, s.VA, s.Size)
	if err != nil {
		d.watches.Give(uid)
		return fmt.Errorf("its userfaultfd: %w", limits.Explain(err))
	}
	unshare := h.m.Unsharer(h.s.n.index, h.s.joined.domain.Slot, s.VA)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holes == nil {
		w.holes, w.gone = map[device.VA]*uffd.Holes{}, map[device.VA]uint64{}
	}
	w.holes[s.VA] = holes
	go func() {
		if !holes.AwaitUnmap() {
			return
		}
		w.unmapped(s.VA, s.Size)
		w.taken(unshare())
		h.s.unwatch(s.VA, holes)
	}()
	return nil
}

// unmapped records that the process has unmapped a part of a shared range.
func (w *watches) unmapped(va device.VA, size uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.gone) >= shadow.MaxShares {
		clear(w.gone) // to unshare them will only be an error
	}
	w.gone[va] = size
}

// taken records whether an unmap has revoked a share.
func (w *watches) taken(back bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if back {
		w.ended++
	}
}

// shared records that a range is shared.
func (w *watches) shared(va device.VA, size uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at, n := range w.gone {
		if at < va+device.VA(size) && va < at+device.VA(n) {
			delete(w.gone, at)
		}
	}
}

// forgives reports whether exactly this range was unmapped and not shared since.
func (w *watches) forgives(u attach.Unshare) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, there := w.gone[u.VA]
	delete(w.gone, u.VA)
	return there && n == u.Size
}

// unwatch closes the userfaultfd of the range at va if it is holes, or any if holes is nil.
func (s *session) unwatch(va device.VA, holes *uffd.Holes) {
	w := &s.watches
	w.mu.Lock()
	own := w.holes[va]
	if own == nil || holes != nil && own != holes {
		w.mu.Unlock()
		return
	}
	delete(w.holes, va)
	w.mu.Unlock()
	s.d.turns.Do(s.uid, func() { _ = own.Close() }) // nothing is written by it: no error matters
	s.d.watches.Give(s.uid)
}

// unwatchAll closes the userfaultfds of all ranges.
func (s *session) unwatchAll() error {
	w := &s.watches
	w.mu.Lock()
	list := w.holes
	w.holes = nil
	w.mu.Unlock()
	var errs []error
	for _, holes := range list {
		s.d.turns.Do(s.uid, func() { errs = append(errs, holes.Close()) })
		s.d.watches.Give(s.uid)
	}
	return errors.Join(errs...)
}
