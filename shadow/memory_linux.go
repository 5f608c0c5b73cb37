package shadow

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
)

// DMA is the device's view of memory, as its driver makes it: pieces of memfds
// at DMA addresses. Rights are those of linux/vfio.h, VFIO_IOMMU_MAP_DMA.
type DMA interface {
	MapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error
	UnmapDMA(addr, size uint64) error
}

// Rights of a mapping (linux/vfio.h, VFIO_DMA_MAP_FLAG_*).
const (
	dmaRead  = 1 << 0
	dmaWrite = 1 << 1
)

// Where things lie for the device: above 4 GiB, so that no interrupt window of
// a real machine is in the way (ours).
const (
	tablesAt = 1 << 32
	windowAt = 2 << 32
)

// Sizes (ours).
const (
	DefaultWindow = 256 << 20
	// MinWindow holds two misaligned blocks with room to spare.
	MinWindow = 64 << 10
	MaxWindow = 64 << 30

	maxGranule = 64 << 10
	minPieces  = 16

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
	// comes back when no access that used them is in flight. It is called with
	// the Memory locked, on any goroutine; an error means that there is no
	// device any more.
	Invalidate func(slot int, va device.VA, pages int) error
	VABits     int
	Window     uint64 // bytes mapped at one time; 0: DefaultWindow
}

// Stats tells what a Memory does.
type Stats struct {
	Window    uint64 // bytes that may be mapped at one time
	Mapped    uint64 // bytes mapped now
	Shared    uint64 // bytes shared by processes now
	Maps      uint64 // pieces mapped since the start
	Evictions uint64 // of these, taken away for others
	PageIns   uint64
}

// Memory is one node's address spaces. Its methods may be called on any
// goroutine.
type Memory struct {
	cfg     Config
	granule uint64

	mu     sync.Mutex
	tables *tables
	shares [device.Slots][]*share
	lru    piece // ring: next is the most recently used, prev the least
	unused []uint32
	stats  Stats
	pruned []uint32
}

// share is memory that a process has handed over.
type share struct {
	slot   int
	va     device.VA
	b      []byte // our own mapping of it
	fd     int
	offset uint64
	write  bool
	users  int  // page-ins under way that use b
	gone   bool // unshared: the last user unmaps
	pieces []*piece
}

// piece is a mapped part of a share, a granule at most.
type piece struct {
	share      *share
	at, size   uint64 // bytes in the share
	place      uint32 // in the window
	prev, next *piece
}

// New makes the tables and maps them for the device.
func New(cfg Config) (*Memory, error) {
	if cfg.Window == 0 {
		cfg.Window = DefaultWindow
	}
	switch {
	case cfg.Window < MinWindow || cfg.Window > MaxWindow || cfg.Window%device.PageSize != 0:
		return nil, fmt.Errorf("%w: a window of %d bytes: want whole pages, %d to %d", ErrConfig, cfg.Window, MinWindow, MaxWindow)
	case cfg.VABits < device.MinVABits || cfg.VABits > device.MaxVABits:
		return nil, fmt.Errorf("%w: %d bits of virtual address: want %d to %d", ErrConfig, cfg.VABits, device.MinVABits, device.MaxVABits)
	}
	m := &Memory{cfg: cfg, granule: min(maxGranule, cfg.Window/minPieces&^(device.PageSize-1))}
	pieces := int(cfg.Window / m.granule)
	m.stats.Window = uint64(pieces) * m.granule
	for i := pieces - 1; i >= 0; i-- {
		m.unused = append(m.unused, uint32(i))
	}
	m.lru.prev, m.lru.next = &m.lru, &m.lru
	// A piece may lie across the border of two tables on each level below the
	// root.
	pages := device.Slots + 2*(tableLevels-1)*pieces
	var err error
	if m.tables, err = newTables(pages, tablesAt, cfg.VABits); err != nil {
		return nil, err
	}
	if err := cfg.DMA.MapDMA(tablesAt, uint64(pages)*device.PageSize, m.tables.fd, 0, dmaRead|dmaWrite); err != nil {
		return nil, errors.Join(fmt.Errorf("shadow tables: %w", err), m.tables.close())
	}
	return m, nil
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
	defer m.mu.Unlock()
	for slot := range m.shares {
		for _, s := range m.shares[slot] {
			s.gone = true
			s.drop()
		}
		m.shares[slot] = nil
	}
	m.lru.prev, m.lru.next = &m.lru, &m.lru
	if m.tables.b == nil {
		return nil
	}
	return m.tables.close()
}

// Stats gives the counters.
func (m *Memory) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

// Share lets the device page in size bytes of a memfd, from offset on, at va of
// a slot's address space; fd stays the caller's. The file must be sealed against
// shrinking. Pages that are in memory already are entered at once, as far as that
// evicts nothing and takes a quarter of the window at most. Errors match ErrShare.
func (m *Memory) Share(slot int, va device.VA, size uint64, fd int, offset uint64, write bool) error {
	s := &share{slot: slot, va: va, offset: offset, write: write, fd: -1}
	if err := m.check(s, size, fd); err != nil {
		return err
	}
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	var err error
	if s.b, err = unix.Mmap(fd, int64(offset), int(size), prot, unix.MAP_SHARED|unix.MAP_NORESERVE); err != nil {
		return fmt.Errorf("%w: mapping %d bytes of the file: %w", ErrShare, size, err)
	}
	if s.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		s.gone = true
		s.drop()
		return fmt.Errorf("%w: keeping its descriptor: %w", ErrShare, err)
	}
	s.pieces = make([]*piece, (size+m.granule-1)/m.granule)
	there := resident(s.b[:min(size, m.stats.Window/4&^(device.PageSize-1))])
	m.mu.Lock()
	err = m.room(s)
	if err == nil {
		m.shares[slot] = append(m.shares[slot], s)
		m.stats.Shared += size
		m.enter(s, there)
	}
	m.mu.Unlock()
	if err != nil {
		s.gone = true
		s.drop()
	}
	return err
}

// enter enters the pages of a share that are there, a byte a page. What cannot be
// entered is left to its faults.
func (m *Memory) enter(s *share, there []byte) {
	for i, t := range there {
		if t&1 == 0 {
			continue
		}
		at := uint64(i) << device.PageShift
		if s.pieces[at/m.granule] == nil && len(m.unused) == 0 {
			return
		}
		p, err := m.ensure(s, at)
		if err != nil || m.tables.set(s.slot, s.va+device.VA(at), m.address(p)+at-p.at, s.write) != nil {
			return
		}
	}
}

// check refuses what can be refused without knowing the other shares.
func (m *Memory) check(s *share, size uint64, fd int) error {
	end := uint64(s.va) + size
	switch {
	case s.slot < 0 || s.slot >= device.Slots:
		return fmt.Errorf("%w: slot %d", ErrShare, s.slot)
	case size == 0 || (uint64(s.va)|size|s.offset)%device.PageSize != 0:
		return fmt.Errorf("%w: %d bytes at %v, from %d of the file: want whole pages of %d bytes", ErrShare, size, s.va, s.offset, device.PageSize)
	case size > MaxShared:
		return fmt.Errorf("%w: %d bytes: at most %d together", ErrShare, size, uint64(MaxShared))
	case end < uint64(s.va) || end > 1<<m.cfg.VABits:
		return fmt.Errorf("%w: %d bytes at %v pass the end of %d-bit addresses", ErrShare, size, s.va, m.cfg.VABits)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return fmt.Errorf("%w: it must be a memfd sealed with F_SEAL_SHRINK", ErrShare)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%w: %w", ErrShare, err)
	}
	if length := uint64(st.Size); length > MaxShared || s.offset > length || size > length-s.offset {
		return fmt.Errorf("%w: %d bytes from %d of a file of %d bytes, which may have %d", ErrShare, size, s.offset, st.Size, uint64(MaxShared))
	}
	return nil
}

// room refuses what collides with other shares of the slot.
func (m *Memory) room(s *share) error {
	list, total := m.shares[s.slot], uint64(len(s.b))
	for _, o := range list {
		total += uint64(len(o.b))
		if s.va < o.end() && o.va < s.end() {
			return fmt.Errorf("%w: %d bytes at %v are shared already: unshare them first", ErrShare, len(o.b), o.va)
		}
	}
	if len(list) >= MaxShares || total > MaxShared {
		return fmt.Errorf("%w: the process shares %d pieces, %d bytes with this one: at most %d and %d", ErrShare, len(list), total, MaxShares, uint64(MaxShared))
	}
	return nil
}

func (s *share) end() device.VA { return s.va + device.VA(len(s.b)) }

// drop unmaps our own view of a share that is gone, with its last user. The
// Memory is locked, or the share not listed yet.
func (s *share) drop() {
	if !s.gone || s.users > 0 {
		return
	}
	if s.b != nil {
		_ = unix.Munmap(s.b) // cannot fail: the very slice that was mapped
		s.b = nil
	}
	if s.fd >= 0 {
		_ = unix.Close(s.fd) // nothing of ours is in it
		s.fd = -1
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
	for i, s := range m.shares[slot] {
		if s.va == va && uint64(len(s.b)) == size {
			m.shares[slot] = append(m.shares[slot][:i], m.shares[slot][i+1:]...)
			m.remove(s)
			return nil
		}
	}
	return fmt.Errorf("%w: %d bytes at %v", ErrNotShared, size, va)
}

// Drop takes everything back that a slot's process has shared.
func (m *Memory) Drop(slot int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.shares[slot] {
		m.remove(s)
	}
	m.shares[slot] = nil
}

func (m *Memory) remove(s *share) {
	for _, p := range s.pieces {
		if p != nil {
			m.unmap(p)
		}
	}
	m.stats.Shared -= uint64(len(s.b))
	s.gone = true
	s.drop()
}

// Forget takes the entries of pages out, so that the device's next access to
// them faults; what is mapped stays so.
func (m *Memory) Forget(slot int, va device.VA, size uint64) {
	if slot < 0 || slot >= device.Slots || size == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	pages := int((va.Offset() + size + device.PageSize - 1) >> device.PageShift)
	if m.tables.clear(slot, va.Page(), pages) {
		m.flush(slot, va.Page(), pages)
	}
}

// flush makes the device forget pages whose entries were cleared, and gives the
// tables back that are empty now.
func (m *Memory) flush(slot int, va device.VA, pages int) {
	m.pruned = m.tables.prune(slot, va, pages, m.pruned[:0])
	// Without a device nothing is left that could use them; its end is noticed
	// where its registers are.
	_ = m.cfg.Invalidate(slot, va, pages)
	m.tables.release(m.pruned)
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
	first := uint64(va-s.va) / m.granule
	last := min(uint64(va-s.va)+size-1, uint64(len(s.b))-1) / m.granule
	// More than the window holds says nothing.
	for i := first; i <= last && i-first < uint64(minPieces); i++ {
		if p := s.pieces[i]; p != nil {
			m.touch(p)
		}
	}
}

func (m *Memory) find(slot int, va device.VA) *share {
	for _, s := range m.shares[slot] {
		if s.va <= va && va < s.end() {
			return s
		}
	}
	return nil
}

// touch makes a piece the most recently used.
func (m *Memory) touch(p *piece) {
	if p.prev != nil {
		p.prev.next, p.next.prev = p.next, p.prev
	}
	p.prev, p.next = &m.lru, m.lru.next
	p.prev.next, p.next.prev = p, p
}

// unmap takes a piece from the device: its entries, what the TLB knows of them,
// the accesses in flight, and then the mapping.
func (m *Memory) unmap(p *piece) {
	s := p.share
	va, pages := s.va+device.VA(p.at), int(p.size>>device.PageShift)
	if m.tables.clear(s.slot, va, pages) {
		m.flush(s.slot, va, pages)
	}
	_ = m.cfg.DMA.UnmapDMA(m.address(p), p.size)
	p.prev.next, p.next.prev = p.next, p.prev
	p.prev, p.next = nil, nil
	m.unused = append(m.unused, p.place)
	s.pieces[p.at/m.granule] = nil
	m.stats.Mapped -= p.size
}

func (m *Memory) address(p *piece) uint64 { return windowAt + uint64(p.place)*m.granule }

// ensure gives the piece of a share that holds byte at, mapped, and evicts the
// least recently used one where the window is full.
func (m *Memory) ensure(s *share, at uint64) (*piece, error) {
	i := at / m.granule
	if p := s.pieces[i]; p != nil {
		m.touch(p)
		return p, nil
	}
	if len(m.unused) == 0 {
		m.unmap(m.lru.prev)
		m.stats.Evictions++
	}
	p := &piece{share: s, at: i * m.granule, place: m.unused[len(m.unused)-1]}
	p.size = min(m.granule, uint64(len(s.b))-p.at)
	rights := uint32(dmaRead)
	if s.write {
		rights |= dmaWrite
	}
	if err := m.cfg.DMA.MapDMA(m.address(p), p.size, s.fd, s.offset+p.at, rights); err != nil {
		return nil, fmt.Errorf("mapping memory for the device: %w", err)
	}
	m.unused = m.unused[:len(m.unused)-1]
	s.pieces[i] = p
	m.touch(p)
	m.stats.Mapped += p.size
	m.stats.Maps++
	return p, nil
}

// PageIn makes the pages of a range of 1 to 64 present, mapped and entered, as
// far as the share of the first reaches and a quarter of the window. Its errors
// are gup's.
func (m *Memory) PageIn(slot int, va device.VA, pages int, write bool) gup.Result {
	va = va.Page()
	if slot < 0 || slot >= device.Slots || pages < 1 || pages > gup.MaxPages {
		return gup.Result{Err: fmt.Errorf("page-in of %d pages in slot %d: %w", pages, slot, gup.ErrUnmapped)}
	}
	m.mu.Lock()
	s := m.find(slot, va)
	if s == nil {
		m.mu.Unlock()
		return gup.Result{Err: &gup.Error{VA: va, Write: write, Err: gup.ErrUnmapped}}
	}
	if write && !s.write {
		m.mu.Unlock()
		return gup.Result{Kind: gup.Permission, Err: &gup.Error{VA: va, Write: write, Err: gup.ErrDenied}}
	}
	s.users++
	m.mu.Unlock()

	at := uint64(va - s.va)
	most := max(1, m.stats.Window/4>>device.PageShift)
	pages = int(min(uint64(pages), most, (uint64(len(s.b))-at)>>device.PageShift))
	res := populate(s.b[at:at+uint64(pages)<<device.PageShift], write)
	if res.Err != nil {
		res.Err = &gup.Error{VA: va, Write: write, Err: res.Err}
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	s.users--
	if s.gone {
		s.drop()
		return gup.Result{Err: &gup.Error{VA: va, Write: write, Err: gup.ErrUnmapped}}
	}
	m.stats.PageIns++
	var p *piece
	for i := range pages {
		if res.Resident>>i&1 == 0 {
			break
		}
		off := at + uint64(i)<<device.PageShift
		err := error(nil)
		if p == nil || off >= p.at+p.size {
			p, err = m.ensure(s, off)
		}
		if err == nil {
			err = m.tables.set(slot, s.va+device.VA(off), m.address(p)+off-p.at, s.write)
		}
		if err != nil {
			res.Resident &= 1<<i - 1
			if i == 0 {
				res.Err = &gup.Error{VA: va, Write: write, Err: fmt.Errorf("%w: %w", gup.ErrNotResident, err)}
			}
			break
		}
	}
	return res
}
