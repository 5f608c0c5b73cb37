package session

import (
	"errors"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/quota"
	"github.com/exanet/pfd/space/shadow"
	"github.com/exanet/pfd/space/uffd"
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
func (w *watches) forgives(r attach.Range) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, there := w.gone[r.VA]
	delete(w.gone, r.VA)
	return there && n == r.Size
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
