package session

import (
	"errors"
	"fmt"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/quota"
	"github.com/exanet/pfd/space/shadow"
	"github.com/exanet/pfd/space/uffd"
	"github.com/exanet/pfd/space/view"
)

// sharing is a session whose machine has tables of the memory that its process shares.
type sharing struct {
	m Sharing
	s *session
}

// sharesPerUID limits the ranges that the processes of one uid share. Each costs pfd a mapping, and the
// kernel lets a process have some 65,000 (vm.max_map_count). quotaOfFiles limits their descriptors.
// Values below are defined by this project.
const (
	sharesPerUID = 4 * shadow.MaxShares
	allShares    = 8 * shadow.MaxShares
)

// quotaOfShares returns the Quota of ranges that processes share. If the device has tables of
// them, pfd keeps the descriptor of each.
func quotaOfShares(f *Features) *quota.Quota {
	if f.Sharing != nil {
		return quotaOfFiles(sharesPerUID, allShares)
	}
	return quota.New(sharesPerUID, allShares, quota.Privileged)
}

// tablesPerUID limits the page tables of the memory that the processes of one uid share and pfd maps,
// of 4 KiB each: 64 MiB, and 256 MiB for all users. 16 GiB of which each page was used have 8,192. At
// the limit pfd accesses memory by the process's own page table. Values below are defined by this
// project.
const (
	tablesPerUID = 16 << 10
	allTables    = 64 << 10
)

// tableBudget is the view.Budget of a user.
type tableBudget struct {
	d   *Host
	uid uint32
}

// Take implements view.Budget.
func (t tableBudget) Take() bool { return t.d.tables.Take(t.uid) }

// Give implements view.Budget.
func (t tableBudget) Give() { t.d.tables.Give(t.uid) }

// Share implements attach.Sharer. It refuses a share that is to be watched and cannot be: a device
// could write to the file after the process has unmapped it.
func (h sharing) Share(s attach.Share, fd, holes int) error {
	defer func() {
		if holes >= 0 { // no watch owns it
			_ = uffd.Unregister(holes, s.VA, s.Size) // fails if nothing is registered
		}
	}()
	h.count()
	if !h.s.d.shares.Take(h.s.uid) {
		return fmt.Errorf("uid %d shares %d ranges, its maximum, or all users together share as many as pfd has descriptors for: "+
			"share fewer and larger ones, or give pfd more descriptors (LimitNOFILE=, ulimit -n)", h.s.uid, h.s.d.shares.Per())
	}
	err := h.m.Share(h.s.n.index, h.s.joined.domain.Slot, s, fd)
	if err == nil && s.Watched {
		if err = h.watch(s, holes); err == nil {
			holes = -1
		} else {
			err = errors.Join(err, h.m.Unshare(h.s.n.index, h.s.joined.domain.Slot, attach.Range{Type: attach.TypeUnshare, VA: s.VA, Size: s.Size}))
		}
	}
	if err != nil {
		h.s.d.shares.Give(h.s.uid)
		return err
	}
	h.s.shares++
	h.s.watches.shared(s.VA, s.Size)
	return nil
}

// watch revokes the share at s.VA when the process unmaps a part of it. The process's munmap
// blocks until the device cannot access the share any more. The caller keeps fd.
func (h sharing) watch(s attach.Share, fd int) error {
	d, uid, w := h.s.d, h.s.uid, &h.s.watches
	if !d.watches.Take(uid) {
		return fmt.Errorf("pfd keeps %d userfaultfds for uid %d, its maximum, or for all users together as many as it has descriptors for: "+
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

// count releases the quota of shares that have ended because the process unmapped their memory
// without a request.
func (h sharing) count() {
	h.s.watches.mu.Lock()
	n := h.s.watches.ended
	h.s.watches.ended = 0
	h.s.watches.mu.Unlock()
	for h.s.shares -= n; n > 0; n-- {
		h.s.d.shares.Give(h.s.uid)
	}
}

// Unshare implements attach.Sharer.
func (h sharing) Unshare(r attach.Range) error {
	err := h.m.Unshare(h.s.n.index, h.s.joined.domain.Slot, r)
	if err == nil {
		h.s.unwatch(r.VA, nil)
		h.s.shares--
		h.s.d.shares.Give(h.s.uid)
	}
	if h.s.watches.forgives(r) {
		return nil
	}
	return err
}

// unshared releases the quota of all of the session's shares when its slot is detached.
func (s *session) unshared() {
	for ; s.shares > 0; s.shares-- {
		s.d.shares.Give(s.uid)
	}
	for ; s.watched > 0; s.watched-- {
		s.d.watches.Give(s.uid)
	}
}

// Prefetch implements attach.Sharer.
func (h sharing) Prefetch(r attach.Range) {
	h.m.Prefetch(h.s.n.index, h.s.joined.domain.Slot, r.VA, r.Size)
}

// Invalidate implements attach.Sharer.
func (h sharing) Invalidate(r attach.Range) {
	h.m.Invalidate(h.s.n.index, h.s.joined.domain.Slot, r.VA, r.Size)
}

// sharer returns what handles the process's shares; nil if the machine cannot use them.
func (s *session) sharer() attach.Sharer {
	switch f := &s.d.features; {
	case f.Sharing != nil:
		return sharing{f.Sharing, s}
	case f.NewView != nil:
		return viewing{s}
	}
	return nil
}

// viewing is a session whose machine sees the process's page tables: the view only makes access to
// shared memory faster. So a range that cannot be entered in the view is not an error; only one that
// overlaps a former share is. The rights of the share hold in either case.
type viewing struct{ s *session }

// errBounds refuses a share or an unshare of a part of another share.
func errBounds(va device.VA, size uint64) error {
	return fmt.Errorf("memory at %v, %d bytes, overlaps a share with other bounds: unshare that first", va, size)
}

// Share implements attach.Sharer.
func (h viewing) Share(s attach.Share, fd, holes int) error {
	watched := holes < 0
	defer func() {
		if !watched { // with the copy that a child has, an munmap would block
			_ = uffd.Unregister(holes, s.VA, s.Size) // fails if nothing is registered
		}
	}()
	h.count()
	if h.overlaps(s.VA, s.Size) {
		return errBounds(s.VA, s.Size)
	}
	if !s.Writable && !h.s.readOnly.Add(s.VA, s.Size) {
		return fmt.Errorf("the process shares %d ranges read-only, the maximum: share fewer and larger ones", view.MaxShares)
	}
	if h.s.view == nil || h.s.d.turns.TooLong(h.s.uid) {
		return nil
	}
	// A range that is to be watched and cannot be is not entered in the view.
	if holes >= 0 {
		if !h.s.d.watches.Take(h.s.uid) {
			return nil
		}
		h.s.watched++
	}
	if !h.s.d.shares.Take(h.s.uid) {
		h.count()
		return nil
	}
	h.s.shares++
	var err error
	h.s.d.turns.Quick(h.s.uid, func() { err = h.s.view.ShareFolios(s.VA, s.Size, fd, s.Offset, s.Writable, int(s.Folio)) })
	if err != nil {
		h.s.log.Debug("shared memory is not entered in the view", "err", err)
		h.count()
		return nil
	}
	if holes >= 0 {
		gone := func(unmap func()) {
			h.s.readOnly.Remove(s.VA, s.Size)
			h.s.d.turns.Do(h.s.uid, unmap)
		}
		err := h.s.view.Watch(s.VA, holes, h.s.method == pagein.GUP && s.Folio == 0, gone)
		if watched = err == nil; err != nil {
			h.s.log.Debug("shared memory has no userfaultfd that reports its unmapping: it is not entered in the view", "err", err)
			h.s.d.turns.Do(h.s.uid, func() { h.s.view.Unshare(s.VA, s.Size) })
			h.count()
		}
	}
	return nil
}

func (h viewing) overlaps(va device.VA, size uint64) bool {
	return h.s.view != nil && h.s.view.Overlaps(va, size) || h.s.readOnly.Forbids(va, size)
}

// count releases the quota of shares that have ended because the process unmapped their memory
// without a request.
func (h viewing) count() {
	if h.s.view == nil {
		return
	}
	n, watched := h.s.view.Count()
	for ; h.s.shares > n; h.s.shares-- {
		h.s.d.shares.Give(h.s.uid)
	}
	for ; h.s.watched > watched; h.s.watched-- {
		h.s.d.watches.Give(h.s.uid)
	}
}

// Unshare implements attach.Sharer.
func (h viewing) Unshare(r attach.Range) error {
	if h.s.view != nil {
		h.s.d.turns.Do(h.s.uid, func() { h.s.view.Unshare(r.VA, r.Size) })
		h.count()
	}
	h.s.readOnly.Remove(r.VA, r.Size)
	if h.overlaps(r.VA, r.Size) {
		return errBounds(r.VA, r.Size)
	}
	return nil
}

// Prefetch implements attach.Sharer. It does nothing: a page enters the view with its first access.
func (viewing) Prefetch(attach.Range) {}

// Invalidate implements attach.Sharer.
func (h viewing) Invalidate(r attach.Range) {
	if h.s.view != nil {
		h.s.d.turns.Quick(h.s.uid, func() { h.s.view.Forget(r.VA, r.Size) })
	}
}

// page returns the size of the pages in which the session's process shares memory; 0 if it need not
// share any.
func (s *session) page() uint32 {
	if m := s.d.features.Sharing; m != nil {
		return uint32(m.Page(s.n.index))
	}
	return 0
}
