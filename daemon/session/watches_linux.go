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

// Descriptors that users have pfd keep are parts of those that it may have (RLIMIT_NOFILE at its
// start): a sixteenth a user, an eighth in the whole, of each of three kinds. Seven sixteenths are for
// attachments (package attach), however many of these are in use. Defined here.
const (
	userPart = 16
	allPart  = 8
)

// quotaOfFiles returns a Quota of things for which pfd keeps a descriptor.
func quotaOfFiles(per, all int) *quota.Quota {
	return quota.New(limits.Descriptors(per, userPart), limits.Descriptors(all, allPart), quota.Privileged)
}

// quotaOfShares bounds what processes share. Where the device has tables of it pfd keeps the
// descriptor of each.
func quotaOfShares(f *Features) *quota.Quota {
	if f.Sharing != nil {
		return quotaOfFiles(sharesPerUID, allShares)
	}
	return quota.New(sharesPerUID, allShares, quota.Privileged)
}

// watch has the share at s.VA taken back when the process unmaps some of it, which goes on when
// the device does not reach it any more. fd stays the caller's.
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

// unmapped takes that a range is going to be shared no more.
func (w *watches) unmapped(va device.VA, size uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.gone) >= shadow.MaxShares {
		clear(w.gone) // to unshare these is an error then, and no more than that
	}
	w.gone[va] = size
}

// taken takes whether an unmap has taken a share back.
func (w *watches) taken(back bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if back {
		w.ended++
	}
}

// shared takes that a range is shared.
func (w *watches) shared(va device.VA, size uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at, n := range w.gone {
		if at < va+device.VA(size) && va < at+device.VA(n) {
			delete(w.gone, at)
		}
	}
}

// forgives reports whether exactly a range was unmapped, and not shared since.
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
