package shadow

import (
	"container/list"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
)

// state is the state of a place; a vacant one is in no map.
type state uint8

const (
	mapping state = iota // new, or more pages are being mapped and entered
	ready                // in its slot's list
	leaving              // entries cleared; to be unmapped after the invalidation
)

// place is the range of DMA addresses for a granule of a share.
type place struct {
	share   *share
	index   uint64 // in granules of the share
	addr    uint64
	state   state
	mapped  uint16 // pages, one bit each
	entered uint16 // of these
	used    time.Time
	in      *list.Element // its element of the slot's list, while it is ready
}

func (p *place) va(m *Memory) device.VA { return p.share.va + device.VA(p.index*m.granule) }

// Every function below is called with the Memory locked. Those that call the device unlock it
// meanwhile, which their comments say with "Unlocks".

// bring maps and enters n pages of a share, all of one place, the first at byte at. It returns
// how many of them are entered now, and whether the first was entered before. The pages are in
// memory. Unlocks.
func (m *Memory) bring(s *share, at uint64, n int) (entered int, there bool, err error) {
	first := int(at % m.granule >> device.PageShift)
	want := uint16(1<<n-1) << first
	if s.gone {
		return 0, false, gup.ErrNotShared
	}
	if p := s.places[at/m.granule]; p != nil && p.state == ready && p.entered&want == want {
		m.use(p)
		return n, true, nil
	}
	room := uint64(n) << device.PageShift
	if err := m.reserve(s, room); err != nil {
		return 0, false, err
	}
	sp := &m.spaces[s.slot]
	p, err := m.hold(s, at/m.granule)
	if err == nil {
		there = p.entered>>first&1 != 0
		var got uint64
		got, err = m.fill(p, want&^p.mapped)
		room -= got
	}
	// A table that was removed from the slot may still be in the device's TLB: no other may take
	// its place before the invalidation.
	for sp.flushes > 0 {
		m.changed.Wait()
	}
	m.promised -= placeTables
	m.taken -= room
	sp.taken -= room
	if p != nil {
		if entered = bits.TrailingZeros16(^(p.mapped >> first)); entered > n {
			entered = n
		}
		if s.gone || m.closed {
			entered, err = 0, gup.ErrNotShared
		}
		for i := range entered {
			off := uint64(first+i) << device.PageShift
			if e := m.tables.set(s.slot, p.va(m)+device.VA(off), p.addr+off, s.write); e != nil {
				entered, err = i, e
				break
			}
			p.entered |= 1 << (first + i)
		}
		m.letGo(p)
	}
	m.changed.Broadcast()
	switch {
	case entered > 0:
		err = nil
	case err == nil:
		err = gup.ErrNotResident // it was unmapped for other pages of the place
	}
	return entered, there, err
}

// hold takes the place of granule i for the caller to map pages of it, and makes it if there is
// none. Unlocks.
func (m *Memory) hold(s *share, i uint64) (*place, error) {
	for {
		p := s.places[i]
		switch {
		case s.gone || m.closed:
			return nil, gup.ErrNotShared
		case p == nil && m.kind == Physical:
			addr, err := m.whereIs(s, i)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", gup.ErrNotResident, err)
			}
			if s.places[i] == nil && !s.gone && !m.closed {
				p = &place{share: s, index: i, addr: addr}
				s.places[i] = p
				return p, nil
			}
			continue
		case p == nil:
			addr, ok := m.addresses.take()
			if !ok {
				if m.evictOldest() == 0 {
					return nil, fmt.Errorf("%w: no DMA addresses left", gup.ErrNotResident)
				}
				continue
			}
			p = &place{share: s, index: i, addr: addr}
			s.places[i] = p
			return p, nil
		case p.state == ready:
			m.take(p, mapping)
			return p, nil
		}
		m.changed.Wait()
	}
}

// whereIs returns the physical address of a place; the caller uses the share. The place's page is
// present, and thus the whole place: it lies in one huge page. Unlocks.
func (m *Memory) whereIs(s *share, i uint64) (uint64, error) {
	at := s.b[i*m.granule:]
	m.mu.Unlock()
	defer m.mu.Lock()
	return m.cfg.DMA.(Physicist).Address(at)
}

// take moves a place out of ready.
func (m *Memory) take(p *place, to state) {
	m.spaces[p.share.slot].ready.Remove(p.in)
	p.in, p.state = nil, to
}

// letGo makes a place ready, or vacant if no page of it is mapped.
func (m *Memory) letGo(p *place) {
	if p.mapped == 0 {
		delete(p.share.places, p.index)
		m.vacate(p)
		return
	}
	p.state = ready
	p.in = m.spaces[p.share.slot].ready.PushBack(p)
	p.used = time.Now()
}

// vacate returns the DMA addresses of a place that has chosen ones.
func (m *Memory) vacate(p *place) {
	if m.addresses != nil {
		m.addresses.give(p.addr)
	}
}

func (m *Memory) use(p *place) {
	m.spaces[p.share.slot].ready.MoveToBack(p.in)
	p.used = time.Now()
}

// reserve reserves bytes of the window for a share, and the tables for a place. A waiting caller
// holds no place, so that the waiters cannot block each other. Unlocks.
func (m *Memory) reserve(s *share, n uint64) error {
	for {
		need := m.taken + n
		switch {
		case s.gone || m.closed:
			return gup.ErrNotShared
		case m.broken != nil:
			return fmt.Errorf("%w: %w", gup.ErrNotResident, m.broken)
		case need+m.kept(s.slot, n) > m.window && m.evictOldest() > 0:
		case need > m.window:
			m.changed.Wait()
		case m.tables.spare >= m.promised+placeTables:
			m.promised += placeTables
			m.taken += n
			m.spaces[s.slot].taken += n
			return nil
		default:
			if _, ok := m.tables.absent(); ok {
				if err := m.grow(); err != nil {
					return err
				}
			} else if m.evictOldest() == 0 {
				m.changed.Wait()
			}
		}
	}
}

// kept returns how much a slot leaves free when it takes n bytes more: a slot with more than an
// equal part of the window makes room in advance for those with less.
func (m *Memory) kept(slot int, n uint64) uint64 {
	sharers := uint64(1)
	for i := range m.spaces {
		if i != slot && len(m.spaces[i].shares) > 0 {
			sharers++
		}
	}
	if sharers == 1 || m.spaces[slot].taken+n <= m.window/sharers {
		return 0
	}
	return m.window / 16
}

// prompt reports whether n bytes of a slot can be mapped without waiting.
func (m *Memory) prompt(slot int, n uint64) bool {
	_, grows := m.tables.absent()
	sp := &m.spaces[slot]
	return m.taken+n+m.kept(slot, n) <= m.window && sp.leaving == 0 && sp.flushes == 0 && m.broken == nil &&
		(grows || m.tables.spare >= m.promised+int(n/m.granule+1)*placeTables)
}

// fill maps the missing pages of a place (one bit each), run by run until a mapping fails, and
// returns the bytes mapped. Unlocks.
func (m *Memory) fill(p *place, missing uint16) (got uint64, err error) {
	rights := uint32(dmaRead)
	if p.share.write {
		rights |= dmaWrite
	}
	for missing != 0 {
		i := bits.TrailingZeros16(missing)
		n := bits.TrailingZeros16(^(missing >> i))
		off, size := uint64(i)<<device.PageShift, uint64(n)<<device.PageShift
		file := p.share.offset + p.index*m.granule + off
		if err := m.mapDMA(&m.stats.Mapped, p, p.addr+off, size, p.share.fd, file, rights); err != nil {
			return got, err
		}
		got += size
		run := uint16(1<<n-1) << i
		p.mapped |= run
		missing &^= run
		m.stats.Maps++
	}
	return got, nil
}

// short reports whether a mapping failed for lack of a resource that an eviction frees: memory
// that may be pinned, entries of the IOMMU, a page.
func short(err error) bool {
	return errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EFAULT)
}

// mapDMA maps memory and counts it. If p is not nil the memory belongs to that place, which the
// caller holds. If a resource is short, it evicts as much and retries once; if nothing else can
// be evicted it evicts from p itself. With Kind Files it evicts whole files, and retries more
// often, since another caller may take the room meanwhile. Unlocks.
func (m *Memory) mapDMA(count *uint64, p *place, addr, size uint64, fd int, offset uint64, rights uint32) error {
	for try := 0; ; try++ {
		m.stats.Moving += size
		m.mu.Unlock()
		err := m.cfg.DMA.MapDMA(addr, size, fd, offset, rights)
		m.mu.Lock()
		m.stats.Moving -= size
		switch {
		case err == nil:
			*count += size
			return nil
		case !short(err):
			return fmt.Errorf("%w: mapping memory for the device: %w", gup.ErrNotResident, err)
		case m.kind == Files && errors.Is(err, unix.ENOSPC) && try < fileTries && m.evictFile():
			continue
		case try > 0:
			m.cfg.Log.Warn("memory cannot be mapped for the device: let pfd lock more (LimitMEMLOCK, ulimit -l), or give it a smaller --window",
				"bytes", size, "pinned", m.stats.Mapped+m.stats.Tables, "bound", Bound(m.window), "err", err)
			return fmt.Errorf("%w: %w", gup.ErrUnmappable, err)
		}
		for freed := uint64(0); freed < size; {
			n := m.evictOldest()
			if n == 0 && p != nil {
				n = m.empty(p)
			}
			if n == 0 {
				break
			}
			freed += n
		}
	}
}

// unmapDMA unmaps a range of which mapped bytes are mapped. Unlocks.
func (m *Memory) unmapDMA(count *uint64, addr, size, mapped uint64) error {
	m.stats.Moving += mapped
	m.mu.Unlock()
	err := m.cfg.DMA.UnmapDMA(addr, size)
	m.mu.Lock()
	m.stats.Moving -= mapped
	if err != nil {
		m.fail(fmt.Errorf("unmapping memory from the device: %w", err))
		return err
	}
	*count -= mapped
	return nil
}

// evictOldest evicts the least recently used place of the slot with most of the window, and
// returns its bytes, or 0 if none is ready. Unlocks.
func (m *Memory) evictOldest() uint64 {
	var from *space
	for i := range m.spaces {
		if sp := &m.spaces[i]; sp.ready.Len() > 0 && (from == nil || sp.taken > from.taken) {
			from = sp
		}
	}
	if from == nil {
		return 0
	}
	m.stats.Evictions++
	return m.evict(from.ready.Front().Value.(*place))
}

// await returns a place of a share when it is ready, or nil if there is none. Unlocks.
func (m *Memory) await(s *share, i uint64) *place {
	for {
		p := s.places[i]
		if p == nil || m.closed {
			return nil
		}
		if p.state == ready {
			return p
		}
		m.changed.Wait()
	}
}

// evict takes a ready place from the device, and returns the bytes that were mapped. Unlocks.
func (m *Memory) evict(p *place) uint64 {
	sp := &m.spaces[p.share.slot]
	m.take(p, leaving)
	sp.leaving++
	size := m.empty(p)
	sp.leaving--
	delete(p.share.places, p.index)
	// Addresses that the device may still use are not used again.
	if p.mapped == 0 {
		m.vacate(p)
	}
	m.changed.Broadcast()
	return size
}

// empty takes all mapped pages of a place, which the caller holds, from the device. It clears the
// entries, invalidates the TLB, waits for the accesses in flight, and then unmaps. It returns the
// bytes. Unlocks.
func (m *Memory) empty(p *place) uint64 {
	slot, size := p.share.slot, uint64(bits.OnesCount16(p.mapped))<<device.PageShift
	if size == 0 {
		return 0
	}
	sp := &m.spaces[slot]
	// Another share may begin behind the end of this one.
	va, pages := p.va(m), int(min(m.granule, p.share.size-p.index*m.granule)>>device.PageShift)
	if p.entered != 0 {
		sp.lost(p.entered)
		p.entered = 0
		m.tables.clear(slot, va, pages)
		m.invalidate(slot, va, pages, m.tables.prune(slot, va, pages, nil))
	}
	// Drop may have cleared the entries, and its invalidation may be in progress.
	for sp.flushes > 0 && m.broken == nil {
		m.changed.Wait()
	}
	if m.broken != nil || m.unmapDMA(&m.stats.Mapped, p.addr, m.granule, size) != nil {
		return 0
	}
	p.mapped = 0
	sp.taken -= size
	m.taken -= size
	return size
}

// invalidate invalidates pages whose entries were cleared, waits for the accesses that use them, and
// frees the tables that were removed with them. Unlocks.
func (m *Memory) invalidate(slot int, va device.VA, pages int, pruned []uint32) {
	m.spaces[slot].flushes++
	m.mu.Unlock()
	err := m.cfg.Invalidate(slot, va, pages)
	m.mu.Lock()
	m.spaces[slot].flushes--
	if err != nil {
		m.fail(fmt.Errorf("the device does not forget memory: %w", err))
	} else {
		m.tables.release(pruned)
	}
	m.changed.Broadcast()
}

// fail ends all page-ins: the device failed to release memory, or is gone.
func (m *Memory) fail(err error) {
	if m.broken == nil {
		m.cfg.Log.Error("no more memory is mapped for the device", "err", err)
		m.broken = err
		m.changed.Broadcast()
	}
}

// grow maps an absent chunk of tables. Unlocks.
func (m *Memory) grow() error {
	k, _ := m.tables.absent()
	m.tables.chunks[k].state = chunkMoving
	at := uint64(k) * chunkSize
	err := m.mapDMA(&m.stats.Tables, nil, m.tables.base+at, chunkSize, m.tables.fd, at, dmaRead|dmaWrite)
	if err != nil {
		m.tables.chunks[k].state = chunkAbsent
	} else {
		m.tables.add(k)
	}
	m.changed.Broadcast()
	return err
}

// shrink unmaps a chunk that holds no table, if there is one. Unlocks.
func (m *Memory) shrink() bool {
	k, ok := m.tables.idle()
	if !ok || m.tables.spare-chunkPages < m.promised {
		return false
	}
	m.tables.remove(k)
	if m.unmapDMA(&m.stats.Tables, m.tables.base+uint64(k)*chunkSize, chunkSize, chunkSize) != nil {
		return false
	}
	m.tables.chunks[k].state = chunkAbsent
	m.changed.Broadcast()
	return true
}
