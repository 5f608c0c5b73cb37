package shadow

import (
	"container/list"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/bits"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/proc"
)

// Sizes (ours).
const (
	DefaultWindow = 256 << 20
	// MinWindow holds two misaligned blocks with room to spare.
	MinWindow = 64 << 10
	MaxWindow = 64 << 30

	// promptBytes is what the device's owner pages in itself at most (package fault).
	promptBytes = 16 * device.PageSize

	maxGranule = 64 << 10 // a place: at most 16 pages, a bit each
	minPlaces  = 16

	// A device's tables take what a window of dense pages takes several times over,
	// and minTables pages at least. Beyond that places go for their tables.
	minTables  = 8 * chunkPages
	tableShare = 32 // of the window

	// MaxShares and MaxShared bound what one process shares, so that none can
	// use up the device's mappings.
	MaxShares = 4096
	MaxShared = 1 << 37
)

// Errors of sharing.
var (
	// ErrShare says that memory cannot be shared as asked.
	ErrShare = errors.New("memory cannot be shared")
	// ErrNotShared says that nothing, or not exactly this, is shared there.
	ErrNotShared = errors.New("not shared")
	// ErrConfig says that a Memory cannot be built as asked.
	ErrConfig = errors.New("shadow memory")
)

// Config is what a Memory is built with.
type Config struct {
	DMA DMA
	// Invalidate makes the device forget the translations of a slot's pages and
	// comes back when no access that used them is in flight. It is called on any
	// goroutine, several times at once; an error means that accesses may still be.
	Invalidate func(slot int, va device.VA, pages int) error
	VABits     int
	Window     uint64 // bytes mapped at one time; 0: DefaultWindow
	// Beside is what the device's driver has mapped itself, bytes: it counts in what
	// is pinned, and the tables have so much less.
	Beside uint64
	Log    *slog.Logger // nil: none
}

// Stats tells what a Memory does.
type Stats struct {
	Window     uint64 // bytes that may be mapped at one time
	Mapped     uint64 // bytes of shared memory mapped now
	Tables     uint64 // bytes of tables, and of what lies beside them, mapped now
	Pinned     uint64 // of both, bytes that mapping has pinned
	Moving     uint64 // bytes being mapped or unmapped now: not, or still, in Pinned
	Shared     uint64 // bytes shared by processes now
	Maps       uint64 // runs of pages mapped since the start
	Evictions  uint64 // places taken away for others, or unused for long
	PageIns    uint64
	Mismatches uint64 // pages that were entered, and to which the device's accesses were refused
}

// Memory is one node's address spaces. Its methods may be called on any
// goroutine.
type Memory struct {
	cfg     Config
	granule uint64
	kind    Kind
	window  uint64

	mu        sync.Mutex // never held in a call of the device or the kernel
	changed   *sync.Cond // a place is ready or vacant, room or tables are free, a slot is invalidated
	tables    *tables
	promised  int // tables that page-ins under way may take
	taken     uint64
	addresses *addresses
	spaces    [device.Slots]space
	stats     Stats
	broken    error // the device does not take pages back any more
	active    int   // calls under way that use tables
	closed    bool
	sweeps    sync.WaitGroup
}

// space is one slot's address space.
type space struct {
	shares  []*share
	taken   uint64    // bytes of the window: mapped, being mapped, or promised to a page-in
	ready   list.List // places in this state, used longest ago first
	leaving int       // places in this state
	flushes int       // invalidations under way after which tables become free
	gone    tally.Invalidated
}

// Bound gives the most bytes that a window and its tables map, and pin where
// mapping pins.
func Bound(window uint64) uint64 { return window + tablePages(window)*device.PageSize }

// tablePages gives how many pages the tables of a window have, the roots among them.
func tablePages(window uint64) uint64 {
	n := max(minTables, window/tableShare>>device.PageShift)
	return (n + chunkPages - 1) / chunkPages * chunkPages
}

// New makes the tables and maps their roots for the device.
func New(cfg Config) (*Memory, error) {
	if cfg.Window == 0 {
		cfg.Window = DefaultWindow
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case cfg.Window < MinWindow || cfg.Window > MaxWindow || cfg.Window%device.PageSize != 0:
		return nil, fmt.Errorf("%w: a window of %d bytes: want whole pages, %d to %d", ErrConfig, cfg.Window, MinWindow, MaxWindow)
	case cfg.VABits < device.MinVABits || cfg.VABits > device.MaxVABits:
		return nil, fmt.Errorf("%w: %d bits of virtual address: want %d to %d", ErrConfig, cfg.VABits, device.MinVABits, device.MaxVABits)
	}
	m := &Memory{cfg: cfg, kind: cfg.DMA.Kind(), window: cfg.Window}
	m.granule = 1 << (bits.Len64(min(maxGranule, cfg.Window/minPlaces)) - 1)
	m.changed = sync.NewCond(&m.mu)
	m.stats.Window = cfg.Window
	pages := tablePages(cfg.Window) - (cfg.Beside+chunkSize-1)/chunkSize*chunkPages
	if m.kind == Physical {
		pages = hugePage / device.PageSize // they lie in one piece; places go for theirs sooner
	}
	own, err := NewOwn(cfg.DMA, "exanet-tables", int(pages)*device.PageSize)
	if err != nil {
		return nil, fmt.Errorf("shadow tables: %w", err)
	}
	m.tables = newTables(own, cfg.VABits)
	if m.kind != Physical {
		if m.tables.base, err = m.choose(pages * device.PageSize); err != nil {
			return nil, errors.Join(err, m.tables.close())
		}
	}
	m.mu.Lock()
	err = m.grow()
	m.mu.Unlock()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("shadow tables: %w", err), m.tables.close())
	}
	return m, nil
}

// choose takes the DMA addresses that may be used, and gives those of the tables.
func (m *Memory) choose(tables uint64) (uint64, error) {
	usable, err := m.cfg.DMA.Ranges()
	if err != nil {
		return 0, fmt.Errorf("usable DMA addresses: %w", err)
	}
	m.addresses = newAddresses(m.granule, usable)
	return m.addresses.carve(tables)
}

// Root gives what belongs into TTBR0 of a slot's context bank: the address of
// its tables, and its ASID in [63:48].
func (m *Memory) Root(slot int) uint64 {
	return m.tables.addr(uint32(slot)) | uint64(slot+1)<<48
}

// Close lets everything go. The device must be gone or reset: nothing is
// unmapped there.
func (m *Memory) Close() error {
	m.mu.Lock()
	m.closed = true
	for slot := range m.spaces {
		for _, s := range m.spaces[slot].shares {
			s.gone = true
			s.drop()
		}
		m.spaces[slot].shares = nil
	}
	m.changed.Broadcast()
	err := m.end()
	m.mu.Unlock()
	m.sweeps.Wait()
	return err
}

// lost counts pages that the device had and has no more.
func (sp *space) lost(entered uint16) {
	sp.gone.Calls++
	sp.gone.Pages += uint64(bits.OnesCount16(entered))
}

// Invalidations gives, by slot, what was taken from the device while its process had it:
// evicted, unshared, or forgotten.
func (m *Memory) Invalidations() (list [device.Slots]tally.Invalidated) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.spaces {
		list[i] = m.spaces[i].gone
	}
	return list
}

// begin and end are around what uses the tables without the lock: they stay until
// the last one is over.
func (m *Memory) begin() { m.active++ }

func (m *Memory) end() error {
	if !m.closed || m.active > 0 {
		return nil
	}
	return m.tables.close()
}

func (m *Memory) done() {
	m.active--
	_ = m.end() // nothing of ours is in it
}

// Stats gives the counters.
func (m *Memory) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	if m.kind == Pinned {
		s.Pinned = s.Mapped + s.Tables + m.cfg.Beside
	}
	s.Tables += m.cfg.Beside
	return s
}

// Share lets the device page in size bytes of a memfd, from offset on, at va of
// a slot's address space; fd stays the caller's. The file must be sealed against
// shrinking. Where mapping pins nothing, pages that are in memory already are entered
// at once, as far as that evicts nothing and takes a quarter of the window at most.
// Errors match ErrShare.
func (m *Memory) Share(slot int, va device.VA, size uint64, fd int, offset uint64, write bool) error {
	s := &share{slot: slot, va: va, size: size, offset: offset, write: write, fd: -1, places: map[uint64]*place{}}
	if err := m.check(s, size, fd); err != nil {
		return err
	}
	var err error
	if s.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return fmt.Errorf("%w: keeping its descriptor: %w", ErrShare, err)
	}
	if m.kind != Files {
		if _, err = s.own(m.kind); err != nil {
			_ = unix.Close(s.fd) // nothing of ours is in it
			return fmt.Errorf("%w: %w", ErrShare, err)
		}
	}
	var there []extent
	if m.kind == Files {
		there = s.resident(m.kind, min(size, m.window/4&^(device.PageSize-1)))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begin()
	defer m.done()
	sp := &m.spaces[slot]
	for err = m.room(s); errors.Is(err, errLeaving); err = m.room(s) {
		m.changed.Wait()
	}
	if err != nil {
		s.gone = true
		s.drop()
		return err
	}
	sp.shares = append(sp.shares, s)
	m.stats.Shared += size
	m.enter(s, there)
	return nil
}

// enter enters the pages of a share that are there, a place at a time. What
// cannot be entered without an eviction is left to its faults.
func (m *Memory) enter(s *share, there []extent) {
	for _, e := range there {
		for at := e.start; at < e.end; {
			end := min(at-at%m.granule+m.granule, e.end)
			if !m.prompt(s.slot, m.granule) {
				return
			}
			n := int((end - at) >> device.PageShift)
			if got, _, err := m.bring(s, at, n); err != nil || got < n {
				return
			}
			at = end
		}
	}
}

// Unshare takes memory back that was shared with exactly these bounds. When it
// returns the device does not reach it any more. Errors match ErrNotShared.
func (m *Memory) Unshare(slot int, va device.VA, size uint64) error {
	if slot < 0 || slot >= device.Slots {
		return fmt.Errorf("%w: slot %d", ErrNotShared, slot)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begin()
	defer m.done()
	s := m.find(slot, va)
	if s == nil || s.va != va || s.size != size {
		return fmt.Errorf("%w: %d bytes at %v", ErrNotShared, size, va)
	}
	m.unshare(s)
	return nil
}

// unshare takes a share back. The Memory is locked, and unlocked meanwhile.
func (m *Memory) unshare(s *share) {
	m.part(s)
	m.sweep(s)
	sp := &m.spaces[s.slot]
	sp.shares = slices.DeleteFunc(sp.shares, func(o *share) bool { return o == s })
	m.changed.Broadcast()
}

// Unsharer gives a function that takes back what is shared at va now, and nothing that is shared
// there later. When it returns the device does not reach that any more; it reports whether it was
// shared still.
func (m *Memory) Unsharer(slot int, va device.VA) func() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.find(slot, va)
	return func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.begin()
		defer m.done()
		for s != nil && slices.Contains(m.spaces[slot].shares, s) {
			if !s.gone {
				m.unshare(s)
				return true
			}
			m.changed.Wait()
		}
		return false
	}
}

// Drop takes everything back that a slot's process has shared. When it returns the
// device does not reach it any more; what is mapped is unmapped soon after. The
// slot's bank must be quiet: the caller may be the device's owner and waits for one
// invalidation.
func (m *Memory) Drop(slot int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sp := &m.spaces[slot]
	gone := sp.shares
	if len(gone) == 0 || m.closed {
		return
	}
	m.begin()
	sp.shares = nil
	for _, s := range gone {
		m.part(s)
		for _, p := range s.places {
			p.entered = 0 // the addresses may be the next process's soon
		}
	}
	m.forget(slot, 0, math.MaxInt, m.tables.drop(slot, nil))
	m.sweeps.Go(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		defer m.done()
		for _, s := range gone {
			m.sweep(s)
		}
	})
}

// part has nothing of a share entered any more.
func (m *Memory) part(s *share) {
	s.gone = true
	m.stats.Shared -= s.size
}

// sweep takes every place of a share that is gone away. It is called with the
// Memory locked and unlocks it meanwhile.
func (m *Memory) sweep(s *share) {
	for len(s.places) > 0 && !m.closed {
		waits := true
		for _, p := range s.places {
			if p.state == ready {
				m.evict(p)
				waits = false
				break
			}
		}
		if waits {
			m.changed.Wait()
		}
	}
	s.drop()
}

// Forget takes pages from the device that are no longer those of their files (punched
// out, for one), so that its next access to them faults. Where mapping pins them, that
// is their places, of at most 16 pages, as a whole: the rest faults again, too.
func (m *Memory) Forget(slot int, va device.VA, size uint64) {
	if slot < 0 || slot >= device.Slots || size == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begin()
	defer m.done()
	last := va + device.VA(size-1)
	if last < va {
		last = math.MaxUint64
	}
	for _, s := range slices.Clone(m.spaces[slot].shares) {
		if va >= s.end() || last < s.va {
			continue
		}
		from, to := uint64(max(va, s.va)-s.va)/m.granule, uint64(min(last, s.end()-1)-s.va)/m.granule
		// What comes in from now on is what the file has now.
		for _, i := range slices.Collect(maps.Keys(s.places)) {
			if i < from || i > to {
				continue
			}
			p := m.await(s, i)
			if p == nil {
				continue
			}
			if m.kind != Files {
				m.evict(p)
				continue
			}
			m.take(p, mapping)
			at := max(va, p.va(m)).Page()
			pages := int((min(last, p.va(m)+device.VA(m.granule)-1)-at)>>device.PageShift) + 1
			if mask := uint16(1<<pages-1) << ((at - p.va(m)) >> device.PageShift); p.entered&mask != 0 {
				m.spaces[slot].lost(p.entered & mask)
				p.entered &^= mask
				m.tables.clear(slot, at, pages)
				m.forget(slot, at, pages, m.tables.prune(slot, at, pages, nil))
			}
			m.letGo(p)
			m.changed.Broadcast()
		}
	}
}

// Used says that a transfer is about to use memory of a slot: it is evicted
// later than what was not used since. It does nothing where it would have to
// wait.
func (m *Memory) Used(slot int, va device.VA, size uint64) {
	if slot < 0 || slot >= device.Slots || size == 0 || !m.mu.TryLock() {
		return
	}
	defer m.mu.Unlock()
	s := m.find(slot, va)
	if s == nil {
		return
	}
	now := time.Now()
	first := uint64(va-s.va) / m.granule
	last := min(uint64(va-s.va)+size-1, s.size-1) / m.granule
	// More than the window holds says nothing.
	for i := first; i <= last && i-first < minPlaces; i++ {
		if p := s.places[i]; p != nil && p.state == ready {
			m.spaces[slot].ready.MoveToBack(p.in)
			p.used = now
		}
	}
}

func (m *Memory) find(slot int, va device.VA) *share {
	for _, s := range m.spaces[slot].shares {
		if s.va <= va && va < s.end() && !s.gone {
			return s
		}
	}
	return nil
}

// PageIn makes the pages of a range of 1 to 64 present, mapped and entered, as
// far as the share of the first reaches and a quarter of the window. Its errors
// are gup's.
func (m *Memory) PageIn(slot int, va device.VA, pages int, write bool) gup.Result {
	va = va.Page()
	if slot < 0 || slot >= device.Slots || pages < 1 || pages > gup.MaxPages {
		return gup.Result{Err: fmt.Errorf("page-in of %d pages in slot %d: %w", pages, slot, proc.ErrRange)}
	}
	fail := func(err error) gup.Result {
		return gup.Result{Err: &gup.Error{VA: va, Write: write, Err: err}}
	}
	m.mu.Lock()
	s := m.find(slot, va)
	if s == nil {
		m.mu.Unlock()
		return fail(gup.ErrNotShared)
	}
	if write && !s.write {
		m.mu.Unlock()
		r := fail(gup.ErrDenied)
		r.Kind = gup.Permission
		return r
	}
	s.users++
	m.mu.Unlock()

	at := uint64(va - s.va)
	pages = int(min(uint64(pages), max(1, m.window/4>>device.PageShift), (s.size-at)>>device.PageShift))
	res := gup.Result{}
	b, err := s.own(m.kind)
	switch {
	case errors.Is(err, unix.EPERM): // which nobody takes back
		res.Err, res.Kind = fmt.Errorf("%w: its file was sealed against writing after it was shared: %w", gup.ErrDenied, err), gup.Permission
	case err != nil:
		res.Err = fmt.Errorf("%w: %w", gup.ErrNotResident, err)
	default:
		// A huge page that is read is there for writing as well: it is no copy.
		res = populate(b[at:at+uint64(pages)<<device.PageShift], write && m.kind != Physical)
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	m.begin()
	defer m.done()
	defer func() { s.users--; s.drop() }()
	if res.Err != nil {
		r := fail(res.Err)
		r.Kind = res.Kind
		return r
	}
	m.stats.PageIns++
	for got, all := 0, bits.TrailingZeros64(^res.Resident); got < all; {
		off := at + uint64(got)<<device.PageShift
		n := min(all-got, int((m.granule-off%m.granule)>>device.PageShift))
		entered, there, err := m.bring(s, off, n)
		if got == 0 {
			res.There = there && err == nil
		}
		if got += entered; entered < n || err != nil {
			res.Resident &= 1<<got - 1
			res.New = res.Resident
			if got == 0 {
				return fail(err)
			}
			break
		}
	}
	return res
}

// Again is a page-in of one page to which the device's accesses are refused although
// it is entered: what is mapped of its place goes, and it is mapped once more, awaited.
func (m *Memory) Again(slot int, va device.VA, write bool) gup.Result {
	if slot < 0 || slot >= device.Slots {
		return gup.Result{Err: fmt.Errorf("page-in in slot %d: %w", slot, proc.ErrRange)}
	}
	m.mu.Lock()
	if s := m.find(slot, va); s != nil {
		m.begin()
		m.stats.Mismatches++
		if p := m.await(s, uint64(va-s.va)/m.granule); p != nil {
			m.evict(p)
		}
		if a, ok := m.cfg.DMA.(Awaiter); ok {
			a.Await()
		}
		m.done()
	}
	m.mu.Unlock()
	return m.PageIn(slot, va, 1, write)
}

// Prompt reports whether a page-in of few pages at va of a slot would wait for nobody now,
// so that the device's owner may do it itself.
func (m *Memory) Prompt(slot int, va device.VA) bool {
	if slot < 0 || slot >= device.Slots || !m.mu.TryLock() {
		return false
	}
	defer m.mu.Unlock()
	if s := m.find(slot, va); s != nil && !s.mapped.Load() {
		return false
	}
	return m.prompt(slot, min(promptBytes, m.window/4))
}

// Idle takes places away that nobody has used for some time, and the tables that
// are empty then.
func (m *Memory) Idle(unused time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begin()
	defer m.done()
	since := time.Now().Add(-unused)
	for slot := range m.spaces {
		for l := &m.spaces[slot].ready; !m.closed && m.broken == nil; {
			e := l.Front()
			if e == nil || e.Value.(*place).used.After(since) {
				break
			}
			m.stats.Evictions++
			m.evict(e.Value.(*place))
		}
	}
	for !m.closed && m.broken == nil && m.shrink() {
	}
}
