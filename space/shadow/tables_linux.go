package shadow

import (
	"errors"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// Entries of the tables (Arm DDI 0487, D8.3 "Translation table descriptor
// formats", stage 1, 4 KiB granule).
const (
	entryTable   = 3       // levels 0 to 2: valid, a table
	entryPage    = 3       // level 3: valid, a page
	entryUnpriv  = 1 << 6  // AP[1]: a device's accesses are unprivileged
	entryRO      = 1 << 7  // AP[2]
	entryShared  = 3 << 8  // SH: inner shareable
	entryAF      = 1 << 10 // no access-flag faults
	entryNG      = 1 << 11 // not global: belongs to its ASID
	entryAddress = 0xfffffffff000

	tableEntries = 512
	tableLevels  = 4
	levelBits    = 9
)

// chunkPages is how many pages of tables are mapped for the device at once: the roots of all
// slots, or as many tables. Defined by this project.
const (
	chunkPages = device.Slots
	chunkSize  = chunkPages * device.PageSize
	chunkFree  = 1<<chunkPages - 1
)

// placeTables is the largest number of tables that the entries of a place need: it may cross the
// border of two on each level below the root.
const placeTables = 2 * (tableLevels - 1)

// tables is the memory of the tables of all address spaces: a memfd in which each slot has its
// root at page slot; the other pages are shared. Chunks of it are mapped for the device as they
// are needed. The holder of the Memory's lock owns it; the device reads it at any time.
type tables struct {
	own    *Own
	fd     int
	words  []uint64
	known  [][]uint64 // the entries of each page as last stored, nil: none yet; the device may overwrite words
	base   uint64     // DMA address of the first page
	top    int        // level at which walks begin
	chunks []chunk
	low    int      // no chunk below it has a free page
	spare  int      // free pages
	live   []uint16 // entries in use, by page
}

// chunk is chunkPages pages of the tables.
type chunk struct {
	state chunkState
	free  uint16 // free pages of those that are mapped, one bit each
}

type chunkState uint8

const (
	chunkAbsent chunkState = iota
	chunkMoving            // being mapped or unmapped
	chunkMapped
)

// newTables makes tables in memory, including the roots. None is mapped.
func newTables(own *Own, vaBits int) *tables {
	pages := len(own.B) / device.PageSize
	return &tables{
		own: own, fd: own.FD, base: own.Addr, chunks: make([]chunk, pages/chunkPages), live: make([]uint16, pages), known: make([][]uint64, pages),
		// Entries are stored whole, by words.
		words: unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(own.B))), len(own.B)/8),
		top:   tableLevels - (vaBits-device.PageShift+levelBits-1)/levelBits,
	}
}

// absent returns a chunk that is not mapped.
func (t *tables) absent() (int, bool) {
	for k := range t.chunks {
		if t.chunks[k].state == chunkAbsent {
			return k, true
		}
	}
	return 0, false
}

// idle returns a chunk that is mapped and holds no table; the one with the roots is never idle.
func (t *tables) idle() (int, bool) {
	for k := len(t.chunks) - 1; k > 0; k-- {
		if c := t.chunks[k]; c.state == chunkMapped && c.free == chunkFree {
			return k, true
		}
	}
	return 0, false
}

// add marks the pages of a newly mapped chunk as free, except the roots.
func (t *tables) add(k int) {
	t.chunks[k].state = chunkMapped
	if k > 0 {
		t.chunks[k].free = chunkFree
		t.spare += chunkPages
		t.low = min(t.low, k)
	}
}

// remove removes the pages of an idle chunk.
func (t *tables) remove(k int) {
	t.chunks[k] = chunk{state: chunkMoving}
	t.spare -= chunkPages
}

// take returns a free page, from the front, so that the later chunks become idle.
func (t *tables) take() (uint32, bool) {
	for ; t.low < len(t.chunks); t.low++ {
		if c := &t.chunks[t.low]; c.free != 0 {
			i := bits.TrailingZeros16(c.free)
			c.free &^= 1 << i
			t.spare--
			return uint32(t.low*chunkPages + i), true
		}
	}
	return 0, false
}

// release frees the pages of tables that were removed.
func (t *tables) release(pages []uint32) {
	for _, p := range pages {
		k := int(p) / chunkPages
		t.chunks[k].free |= 1 << (p % chunkPages)
		t.low = min(t.low, k)
	}
	t.spare += len(pages)
}

func (t *tables) close() error {
	t.words = nil
	return t.own.Close()
}

func (t *tables) addr(page uint32) uint64 { return t.base + uint64(page)<<device.PageShift }

// load returns the entry that store has stored. The device can write the tables, too, but what it
// writes affects only its own walks.
func (t *tables) load(page uint32, i int) uint64 {
	if t.known[page] == nil {
		return 0
	}
	return t.known[page][i]
}

func (t *tables) store(page uint32, i int, e uint64) {
	old := t.load(page, i)
	if t.known[page] == nil {
		t.known[page] = make([]uint64, tableEntries)
	}
	t.known[page][i] = e
	atomic.StoreUint64(&t.words[int(page)*tableEntries+i], e)
	switch {
	case old == 0 && e != 0:
		t.live[page]++
	case old != 0 && e == 0:
		t.live[page]--
	}
}

// index returns the index of va's entry in a table of a level.
func index(va device.VA, level int) int {
	return int(va>>(device.PageShift+levelBits*(tableLevels-1-level))) & (tableEntries - 1)
}

// errTables reports that no page for a table is left. This cannot happen, since a place is
// entered only when placeTables are free.
var errTables = errors.New("shadow tables: no page for a table left")

// set writes the entry of one page; dma is the page's DMA address.
func (t *tables) set(slot int, va device.VA, dma uint64, write bool) error {
	page := uint32(slot)
	for level := t.top; level < tableLevels-1; level++ {
		i := index(va, level)
		e := t.load(page, i)
		if e == 0 {
			// The page is empty: a table is freed when its last entry is cleared.
			next, ok := t.take()
			if !ok {
				return errTables
			}
			e = t.addr(next) | entryTable
			t.store(page, i, e)
		}
		page = uint32((e&entryAddress - t.base) >> device.PageShift)
	}
	e := dma&entryAddress | entryPage | entryUnpriv | entryShared | entryAF | entryNG
	if !write {
		e |= entryRO
	}
	t.store(page, index(va, tableLevels-1), e)
	return nil
}

// path holds the tables on the way to a page's entry, from the root on.
type path struct {
	pages [tableLevels]uint32
	full  bool // it reaches the last level
}

func (t *tables) walk(slot int, va device.VA) (p path) {
	p.pages[t.top] = uint32(slot)
	for level := t.top; level < tableLevels-1; level++ {
		e := t.load(p.pages[level], index(va, level))
		if e == 0 {
			return p
		}
		p.pages[level+1] = uint32((e&entryAddress - t.base) >> device.PageShift)
	}
	p.full = true
	return p
}

// clear clears the entries of pages.
func (t *tables) clear(slot int, va device.VA, pages int) {
	for i := range pages {
		at := va + device.VA(i)<<device.PageShift
		p := t.walk(slot, at)
		if p.full && t.load(p.pages[tableLevels-1], index(at, tableLevels-1)) != 0 {
			t.store(p.pages[tableLevels-1], index(at, tableLevels-1), 0)
		}
	}
}

// prune removes tables that clear has left empty, and appends them to out. They become free only
// with release, after the invalidation of the device's TLB: until then a walk may be reading
// them.
func (t *tables) prune(slot int, va device.VA, pages int, out []uint32) []uint32 {
	for i := 0; i < pages; {
		at := va + device.VA(i)<<device.PageShift
		p := t.walk(slot, at)
		if p.full {
			for level := tableLevels - 1; level > t.top && t.live[p.pages[level]] == 0; level-- {
				t.store(p.pages[level-1], index(at, level-1), 0)
				out = append(out, p.pages[level])
			}
		}
		i += tableEntries - index(at, tableLevels-1) // the next last-level table
	}
	return out
}

// drop clears all entries of a slot, and appends its tables to out, as prune does.
func (t *tables) drop(slot int, out []uint32) []uint32 {
	return t.dropTable(uint32(slot), t.top, out)
}

func (t *tables) dropTable(page uint32, level int, out []uint32) []uint32 {
	for i := 0; t.live[page] > 0; i++ {
		e := t.load(page, i)
		if e == 0 {
			continue
		}
		t.store(page, i, 0)
		if level < tableLevels-1 {
			next := uint32((e&entryAddress - t.base) >> device.PageShift)
			out = append(t.dropTable(next, level+1, out), next)
		}
	}
	return out
}

// mincore returns which pages of a mapping are in memory, in bit 0 of one byte for each page, or
// nil if the kernel does not report it.
func mincore(b []byte) []byte {
	there := make([]byte, len(b)>>device.PageShift)
	if len(there) == 0 {
		return nil
	}
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(unsafe.Pointer(unsafe.SliceData(there))))
	if errno != 0 {
		return nil
	}
	return there
}
