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
	"github.com/exanet/pfd/space/proc"
)

// Sizes. Values below are defined by this project.
const (
	DefaultWindow = 256 << 20
	// MinWindow holds two unaligned blocks, with room to spare.
	MinWindow = 64 << 10
	MaxWindow = 64 << 30

	maxGranule = 64 << 10 // a place: at most 16 pages, one bit each
	minPlaces  = 16

	// The tables of a device may take several times the size that a window of dense pages needs,
	// and minTables pages at least. At that bound places are evicted to free tables.
	minTables  = 8 * chunkPages
	tableShare = 32 // of the window

	// MaxShares and MaxShared bound the shares of one process, so that no process can use up the
	// device's mappings.
	MaxShares = 4096
	MaxShared = 1 << 37
)

// Errors of sharing.
var (
	// ErrShare reports that memory cannot be shared as requested.
	ErrShare = errors.New("memory cannot be shared")
	// ErrNotShared reports that nothing, or not exactly this range, is shared there.
	ErrNotShared = errors.New("not shared")
	// ErrConfig reports that a Memory cannot be built as requested.
	ErrConfig = errors.New("shadow memory")
)

// Config configures a Memory.
type Config struct {
	DMA DMA
	// Invalidate invalidates the device's translations of a slot's pages and returns when no
	// access that used them is in flight. It is safe for concurrent use. After an error such
	// accesses may still be in flight.
	Invalidate func(slot int, va device.VA, pages int) error
	VABits     int
	Window     uint64 // bytes mapped at one time; 0: DefaultWindow
	// Beside is how many bytes the device's driver has mapped itself. They count as pinned, and
	// reduce the size of the tables.
	Beside uint64
	Log    *slog.Logger // nil: none
}

// Stats holds the counters of a Memory.
type Stats struct {
	Window    uint64 // bytes that may be mapped at one time
	Mapped    uint64 // bytes of shared memory mapped now
	Tables    uint64 // bytes of tables, and of the driver's own memory, mapped now
	Pinned    uint64 // of both, bytes that mapping has pinned
	Moving    uint64 // bytes being mapped (not yet in Pinned) or unmapped (still in Pinned) now
	Shared    uint64 // bytes shared by processes now
	Maps      uint64 // runs of pages mapped since the start
	Evictions uint64 // places evicted for others, or unused for long
	PageIns   uint64
	Remaps    uint64 // entered pages to which the device's accesses were refused
}

// Memory holds one node's address spaces. It is safe for concurrent use.
type Memory struct {
	cfg     Config
	granule uint64
	kind    Kind
	window  uint64

	mu        sync.Mutex // never held during a call of the device or the kernel
	changed   *sync.Cond // a place is ready or vacant, room or tables are free, or a slot is invalidated
	tables    *tables
	promised  int // tables reserved for page-ins in progress
	taken     uint64
	addresses *addresses
	spaces    [device.Slots]space
	stats     Stats
	broken    error // why the device no longer releases pages
	active    int   // calls in progress that use tables
	closed    bool
	sweeps    sync.WaitGroup
}

// space is one slot's address space.
type space struct {
	shares      []*share
	taken       uint64    // bytes of the window: mapped, being mapped, or reserved for a page-in
	ready       list.List // places in this state, least recently used first
	leaving     int       // places in this state
	flushes     int       // invalidations in progress after which tables become free
	invalidated tally.Invalidated
}

// Bound returns the largest number of bytes that a window and its tables map. Where mapping pins,
// it is also the largest number pinned.
func Bound(window uint64) uint64 { return window + tablePages(window)*device.PageSize }

// tablePages returns how many pages the tables of a window have, including the roots.
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
		return nil, fmt.Errorf("%w: a window of %d bytes: it must be whole pages, %d to %d bytes", ErrConfig, cfg.Window, MinWindow, MaxWindow)
	case cfg.VABits < device.MinVABits || cfg.VABits > device.MaxVABits:
		return nil, fmt.Errorf("%w: %d bits of virtual address: give %d to %d", ErrConfig, cfg.VABits, device.MinVABits, device.MaxVABits)
	}
	m := &Memory{cfg: cfg, kind: cfg.DMA.Kind(), window: cfg.Window}
	m.granule = 1 << (bits.Len64(min(maxGranule, cfg.Window/minPlaces)) - 1)
	m.changed = sync.NewCond(&m.mu)
	m.stats.Window = cfg.Window
	pages := tablePages(cfg.Window) - (cfg.Beside+chunkSize-1)/chunkSize*chunkPages
	if m.kind == Physical {
		pages = hugePage / device.PageSize // they lie in one piece; places are evicted for tables sooner
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

// choose selects the DMA addresses to use and returns those of the tables.
func (m *Memory) choose(tables uint64) (uint64, error) {
	usable, err := m.cfg.DMA.Ranges()
	if err != nil {
		return 0, fmt.Errorf("usable DMA addresses: %w", err)
	}
	m.addresses = newAddresses(m.granule, usable)
	return m.addresses.carve(tables)
}

// Root returns the value of TTBR0 of a slot's context bank: the address of its tables, and its
// ASID in [63:48].
func (m *Memory) Root(slot int) uint64 {
	return m.tables.addr(uint32(slot)) | uint64(slot+1)<<48
}

// Close releases all memory. The device must be gone or reset, since Close unmaps nothing from
// it.
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

// lost counts pages that were taken from the device.
func (sp *space) lost(entered uint16) {
	sp.invalidated.Calls++
	sp.invalidated.Pages += uint64(bits.OnesCount16(entered))
}

// Invalidations returns, by slot, the memory that was taken from the device while its process was
// attached: evicted, unshared, or forgotten.
func (m *Memory) Invalidations() (list [device.Slots]tally.Invalidated) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.spaces {
		list[i] = m.spaces[i].invalidated
	}
	return list
}

// begin and end enclose the use of the tables without the lock: the tables stay until the last
// use has ended.
func (m *Memory) begin() { m.active++ }

func (m *Memory) end() error {
	if !m.closed || m.active > 0 {
		return nil
	}
	return m.tables.close()
}

func (m *Memory) done() {
	m.active--
	_ = m.end() // nothing was written through it
}

// Stats returns the counters.
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

// Share lets the device page in size bytes of a memfd, from offset on, at va of a slot's address
// space; fd remains the caller's. The file must be sealed against shrinking. Where mapping pins
// nothing, pages that are already in memory are entered at once, as far as that needs no eviction
// and at most a quarter of the window. Errors match ErrShare.
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
			_ = unix.Close(s.fd) // nothing was written through it
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

// enter enters the resident pages of a share, place by place. Pages that need an eviction are
// left to page faults.
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

// Unshare ends the sharing of memory that was shared with exactly these bounds. When it returns
// the device no longer accesses it. Errors match ErrNotShared.
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

// unshare ends a share. The Memory is locked, and unlocked meanwhile.
func (m *Memory) unshare(s *share) {
	m.part(s)
	m.sweep(s)
	sp := &m.spaces[s.slot]
	sp.shares = slices.DeleteFunc(sp.shares, func(o *share) bool { return o == s })
	m.changed.Broadcast()
}

// Unsharer returns a function that ends the share that is now at va, but none that is shared
// there later. When that function returns the device no longer accesses the share; it reports
// whether the share still existed.
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

// Drop ends all shares of a slot's process. When it returns the device no longer accesses them;
// they are unmapped soon after. The slot's bank must be quiet. The caller may be the device's
// owner: Drop waits for only one invalidation.
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
			p.entered = 0 // the addresses may belong to the next process soon
		}
	}
	m.invalidate(slot, 0, math.MaxInt, m.tables.drop(slot, nil))
	m.sweeps.Go(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		defer m.done()
		for _, s := range gone {
			m.sweep(s)
		}
	})
}

// part marks a share as gone: no more of its pages are entered.
func (m *Memory) part(s *share) {
	s.gone = true
	m.stats.Shared -= s.size
}

// sweep removes every place of a share that is gone. The Memory is locked, and unlocked
// meanwhile.
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

// Forget unmaps pages that no longer belong to their files (punched out, for one), so that the
// device's next access to them faults. Where mapping pins pages, whole places of at most 16 pages
// are unmapped, whose other pages fault again, too.
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
		// Pages that come in from now on have the file's present contents.
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
				m.invalidate(slot, at, pages, m.tables.prune(slot, at, pages, nil))
			}
			m.letGo(p)
			m.changed.Broadcast()
		}
	}
}

// Used records that a transfer is about to use memory of a slot: it is evicted later than memory
// that was not used since. It does nothing if it would have to wait.
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
	// A range larger than the window carries no information.
	for i := first; i <= last && i-first < minPlaces; i++ {
		if p := s.places[i]; p != nil && p.state == ready {
			m.spaces[slot].ready.MoveToBack(p.in)
			p.used = now
		}
	}
}

// Writable reports whether a slot shares memory at va for writing.
func (m *Memory) Writable(slot int, va device.VA) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.find(slot, va)
	return s != nil && s.write
}

// ReadOnly reports whether a slot shares any of size bytes at va, and not for writing.
func (m *Memory) ReadOnly(slot int, va device.VA, size uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.spaces[slot].shares {
		if !s.write && !s.gone && va < s.end() && (s.va <= va || uint64(s.va-va) < size) {
			return true
		}
	}
	return false
}

func (m *Memory) find(slot int, va device.VA) *share {
	for _, s := range m.spaces[slot].shares {
		if s.va <= va && va < s.end() && !s.gone {
			return s
		}
	}
	return nil
}

// PageIn makes the pages of a range of 1 to 64 present, mapped and entered, up to the end of the
// first page's share and at most a quarter of the window. Its errors are those of package gup.
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
	case errors.Is(err, unix.EPERM): // a seal is permanent
		res.Err, res.Kind = fmt.Errorf("%w: its file was sealed against writing after it was shared: %w", gup.ErrDenied, err), gup.Permission
	case err != nil:
		res.Err = fmt.Errorf("%w: %w", gup.ErrNotResident, err)
	default:
		// A huge page that is present for reading can also be written: it is no copy.
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

// Remap handles a page that is entered but to which the device's accesses are refused: it unmaps
// the whole place and maps the page once more, with a MapDMA that is awaited.
func (m *Memory) Remap(slot int, va device.VA, write bool) gup.Result {
	if slot < 0 || slot >= device.Slots {
		return gup.Result{Err: fmt.Errorf("page-in in slot %d: %w", slot, proc.ErrRange)}
	}
	m.mu.Lock()
	if s := m.find(slot, va); s != nil {
		m.begin()
		m.stats.Remaps++
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

// Prompt reports whether a page-in at va of a slot would not wait now, so that the device's owner
// may do it itself.
func (m *Memory) Prompt(slot int, va device.VA, pages int) bool {
	if slot < 0 || slot >= device.Slots || !m.mu.TryLock() {
		return false
	}
	defer m.mu.Unlock()
	if s := m.find(slot, va); s != nil && !s.mapped.Load() {
		return false
	}
	return m.prompt(slot, min(uint64(pages)<<device.PageShift, m.window/4))
}

// Idle unmaps places that were not used for some time, and the tables that are then empty.
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
