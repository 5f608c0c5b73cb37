package session

import (
	"errors"
	"fmt"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/pagein"
	"github.com/exanet/pfd/shadow"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/uffd"
	"github.com/exanet/pfd/view"
)

// Sharing is a machine whose devices do not see the processes' page tables:
// processes share memory, and pfd keeps tables of it.
type Sharing interface {
	// Tables gives what belongs into TTBR0 of a slot's context bank. Called on
	// the owning goroutine.
	Tables(node, slot int) uint64
	// Share and Unshare take a process's requests. Any goroutine may call them.
	Share(node, slot int, s attach.Share, fd int) error
	Unshare(node, slot int, u attach.Unshare) error
	// Unsharer returns a function that takes back what a slot shares at va now, and nothing that is
	// shared there later; it reports whether that was shared still. Any goroutine may call it.
	Unsharer(node, slot int, va device.VA) func() bool
	// Prefetch enters pages of shared memory, as far as that goes. Any goroutine may
	// call it.
	Prefetch(node, slot int, va device.VA, size uint64)
	// Invalidate takes pages from the device that are no longer those of the file. Any
	// goroutine may call it.
	Invalidate(node, slot int, va device.VA, size uint64)
	// Page gives the size of the pages in which memory is shared, 0 where the device
	// is gone. Any goroutine may call it.
	Page(node int) uint64
	// Asked says that a slot's process is asked to bring pages in by itself. Called
	// on the owning goroutine, before the process is told.
	Asked(node, slot int, f netlink.Fault)
	// Shadow tells what of the processes' memory the device has.
	Shadow(node int) (ShadowStats, bool)
	// Messages tells how many messages the device was sent, and how many awaited.
	Messages(node int) (sent, awaited uint64, ok bool)
}

// ShadowStats is what a node's device has of the processes' memory.
type ShadowStats struct {
	Window    uint64 // bytes that may be mapped at one time
	Mapped    uint64 // bytes that are
	Tables    uint64 // bytes of tables and queues that are mapped besides
	Pinned    uint64 // of both, bytes that mapping has pinned
	Shared    uint64 // bytes that processes share
	Maps      uint64 // runs of pages mapped since the device came
	Evictions uint64 // places of at most 16 pages that were unmapped for others, or unused
	// Mismatches is how many pages were mapped once more because the device's accesses
	// to them were refused.
	Mismatches uint64
}

// sharing is a session as what its process shares memory with.
type sharing struct {
	m Sharing
	s *session
}

// sharesPerUID bounds the ranges that the processes of one uid share: each costs pfd a
// mapping, and the kernel lets a process have some 65,000 (vm.max_map_count). Defined here.
// See quotaOfFiles for their descriptors.
const (
	sharesPerUID = 4 * shadow.MaxShares
	allShares    = 8 * shadow.MaxShares
)

// tablesPerUID bounds the page tables of what the processes of one uid share and pfd maps, of
// 4 KiB each: 64 MiB, and 256 MiB for all users (ours). 16 GiB of which each page was used have
// 8,192. Where there are no more memory goes by the process's own table.
const (
	tablesPerUID = 16 << 10
	allTables    = 64 << 10
)

// tables is the view.Budget of a user.
type tables struct {
	d   *Host
	uid uint32
}

// Take implements view.Budget.
func (t tables) Take() bool { return t.d.tables.Take(t.uid) }

// Give implements view.Budget.
func (t tables) Give() { t.d.tables.Give(t.uid) }

// Share implements attach.Sharer. A share that is to be watched and cannot be is refused: a write
// could reach it when nothing of the process's is there any more.
func (h sharing) Share(s attach.Share, fd, holes int) error {
	defer func() {
		if holes >= 0 { // nobody has taken it
			_ = uffd.Unregister(holes, s.VA, s.Size) // it fails where nothing is registered
		}
	}()
	h.count()
	if !h.s.d.shares.Take(h.s.uid) {
		return fmt.Errorf("uid %d shares %d ranges already, or all users do too many, also by the descriptors that pfd may have: "+
			"share fewer and larger ones, or give pfd more descriptors (LimitNOFILE=, ulimit -n)", h.s.uid, h.s.d.shares.Per())
	}
	err := h.m.Share(h.s.n.index, h.s.joined.domain.Slot, s, fd)
	if err == nil && s.Watched {
		if err = h.watch(s, holes); err == nil {
			holes = -1
		} else {
			err = errors.Join(err, h.m.Unshare(h.s.n.index, h.s.joined.domain.Slot, attach.Unshare{VA: s.VA, Size: s.Size}))
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

// count counts what the process shares no more: it has unmapped some without saying so.
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
func (h sharing) Unshare(u attach.Unshare) error {
	err := h.m.Unshare(h.s.n.index, h.s.joined.domain.Slot, u)
	if err == nil {
		h.s.unwatch(u.VA, nil)
		h.s.shares--
		h.s.d.shares.Give(h.s.uid)
	}
	if h.s.watches.forgives(u) {
		return nil
	}
	return err
}

// unshared counts what the session shared no more: its slot is detached.
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

// sharer gives what takes the process's memory; nil where nothing does.
func (s *session) sharer() attach.Sharer {
	switch f := &s.d.features; {
	case f.Sharing != nil:
		return sharing{f.Sharing, s}
	case f.NewView != nil:
		return viewing{s}
	}
	return nil
}

// viewing is a session whose machine sees the process's tables: what it shares is reached
// sooner. What cannot be seen need not be, so only what would leave a former share in the way
// is refused. The rights of the share hold in either case.
type viewing struct{ s *session }

// errBounds refuses a share or an unshare that meets a part of another share.
func errBounds(va device.VA, size uint64) error {
	return fmt.Errorf("memory at %v, %d bytes, is part of what is shared by other bounds: unshare that first", va, size)
}

// Share implements attach.Sharer.
func (h viewing) Share(s attach.Share, fd, holes int) error {
	watched := holes < 0
	defer func() {
		if !watched { // an munmap would wait for a copy that a child of the process has
			_ = uffd.Unregister(holes, s.VA, s.Size) // it fails where nothing is registered
		}
	}()
	h.count()
	if h.overlaps(s.VA, s.Size) {
		return errBounds(s.VA, s.Size)
	}
	if !s.Writable && !h.s.readOnly.Add(s.VA, s.Size) {
		return fmt.Errorf("the process shares %d ranges for reading alone already: share fewer and larger ones", view.MaxShares)
	}
	if h.s.view == nil || h.s.d.turns.TooLong(h.s.uid) {
		return nil
	}
	// What is to be watched and cannot be goes by the process's own table.
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
	h.s.d.turns.Quick(h.s.uid, func() { err = h.s.view.Share(s.VA, s.Size, fd, s.Offset, s.Writable) })
	if err != nil {
		h.s.log.Debug("shared memory is not seen", "err", err)
		h.count()
		return nil
	}
	if holes >= 0 {
		gone := func(unmap func()) {
			h.s.readOnly.Remove(s.VA, s.Size)
			h.s.d.turns.Do(h.s.uid, unmap)
		}
		err := h.s.view.Watch(s.VA, holes, h.s.method == pagein.GUP, gone)
		if watched = err == nil; err != nil {
			h.s.log.Debug("shared memory has no userfaultfd that says when it is unmapped: it is not seen", "err", err)
			h.s.d.turns.Do(h.s.uid, func() { h.s.view.Unshare(s.VA, s.Size) })
			h.count()
		}
	}
	return nil
}

func (h viewing) overlaps(va device.VA, size uint64) bool {
	return h.s.view != nil && h.s.view.Overlaps(va, size) || h.s.readOnly.Forbids(va, size)
}

// count counts what the process shares no more: it has unmapped some without saying so.
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
func (h viewing) Unshare(u attach.Unshare) error {
	if h.s.view != nil {
		h.s.d.turns.Do(h.s.uid, func() { h.s.view.Unshare(u.VA, u.Size) })
		h.count()
	}
	h.s.readOnly.Remove(u.VA, u.Size)
	if h.overlaps(u.VA, u.Size) {
		return errBounds(u.VA, u.Size)
	}
	return nil
}

// Prefetch implements attach.Sharer: what was brought in is seen with its first access.
func (viewing) Prefetch(attach.Range) {}

// Invalidate implements attach.Sharer.
func (h viewing) Invalidate(r attach.Range) {
	if h.s.view != nil {
		h.s.d.turns.Quick(h.s.uid, func() { h.s.view.Forget(r.VA, r.Size) })
	}
}

// asking tells the machine what a process is asked for, and then the process.
type asking struct {
	delegate
	m    Sharing
	slot int
}

// Ask implements fault.Delegate.
func (a asking) Ask(f netlink.Fault) error {
	a.m.Asked(a.n.index, a.slot, f)
	return a.delegate.Ask(f)
}

// delegateFor gives how the session's process is asked.
func (s *session) delegateFor(slot int) fault.Delegate {
	if m := s.d.features.Sharing; m != nil {
		return asking{s.delegate(), m, slot}
	}
	return s.delegate()
}

// page gives the size of the pages in which the session's process shares memory, 0
// where it has to share none.
func (s *session) page() uint32 {
	if m := s.d.features.Sharing; m != nil {
		return uint32(m.Page(s.n.index))
	}
	return 0
}

// space returns the process's memory: each layer does what it can, and leaves the rest to the one
// before. A device that uses pfd's own tables accesses shared memory only: there the process's
// memory is needed, and not nil, only where it is to page in before pfd enters the pages.
func (s *session) space() space.Space {
	var mem space.Space
	switch {
	case s.memport != nil:
		mem = space.NewHelper(s.memport)
	case s.method == pagein.UFFD:
		s.regions = gup.NewRegions(s.process)
		mem = space.NewDirect(s.process, s.regions)
	default:
		mem = space.NewDirect(s.process, gup.NewShared(s.process, s.view))
	}
	if s.view != nil {
		mem = space.NewShared(s.view, mem, s.memport != nil)
	}
	shares := s.d.features.Sharing != nil
	switch {
	case s.method == pagein.Populate:
		p := space.Process{Looks: s.process, Ask: s.delegate().numbered, Answers: s.served}
		if s.memport != nil {
			p.Looks, p.Slow = s.memport, true
		}
		return space.NewAsked(p, mem, !shares)
	case shares && s.regions == nil:
		return nil
	}
	return mem
}

// checkDevice refuses what the node's device cannot do, or cannot do now.
func (s *session) checkDevice() error {
	if s.n.down.Load() {
		return refusal(attach.CodeBusy, "the device of node %d is gone and pfd waits for it: start it again, and try again", s.n.index)
	}
	return nil
}
