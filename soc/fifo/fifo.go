// Package fifo is the page-fault FIFO of a node: 512 entries of 128 bits with the paper's reading
// rules (spec/hardware.md 4; 000 §3.2.3.1, table 3.2).
//
// docs/papers.md lists the papers that comments cite by number.
package fifo

import "github.com/exanet/pfd/device"

type entry struct {
	words [4]uint32
	ext   uint32
	fault device.FaultEntry
}

// FIFO holds the faults of one direction: RXFIFO faults of destinations, TXFIFO faults of
// sources. The zero value is empty and ready.
type FIFO struct {
	ring     []entry // of 2^n entries: it grows, since few FIFOs are ever full
	head     int     // oldest entry
	level    int
	seen     uint8 // words a, b and c of the head read since the last pop, bits 0..2
	limit    int   // entries, 0 for all: for tests that fill it
	overflow bool
	last     [2]device.FaultEntry // the last two pushed, for duplicates
	lasts    int
}

// Outcome is the result of a Push.
type Outcome uint8

// The outcomes of Push.
const (
	Pushed Outcome = iota
	Duplicate
	Overflowed
)

// Push adds fault e; ext is the number of bytes of its transfer from the faulting address on. It
// skips an entry equal in source, transaction, sequence number and page to one of the last two
// pushed (defined by this project: the thesis's hardware compares with the last one, its driver
// with the last two). A full FIFO drops the entry and sets overflow.
func (f *FIFO) Push(e device.FaultEntry, ext uint32) Outcome {
	for _, l := range f.last[:f.lasts] {
		if l.SameFault(e) {
			return Duplicate
		}
	}
	if f.level == f.depth() {
		f.overflow = true
		return Overflowed
	}
	if f.level == len(f.ring) {
		f.grow()
	}
	*f.at(f.level) = entry{words: e.Words(), ext: ext, fault: e}
	f.level++
	f.last[1] = f.last[0]
	f.last[0] = e
	if f.lasts < 2 {
		f.lasts++
	}
	return Pushed
}

// grow doubles the ring.
func (f *FIFO) grow() {
	const least = 16 // entries (defined by this project)
	ring := make([]entry, max(2*len(f.ring), least))
	for i := range f.level {
		ring[i] = *f.at(i)
	}
	f.ring, f.head = ring, 0
}

// at returns the place of entry i from the head.
func (f *FIFO) at(i int) *entry { return &f.ring[(f.head+i)&(len(f.ring)-1)] }

// Read32 reads word 0..3 (a..d) of the head; zero when empty. Reading d pops the entry if a, b
// and c have been read since the last pop; otherwise it pops nothing.
func (f *FIFO) Read32(word int) uint32 {
	if f.level == 0 {
		return 0
	}
	v := f.ring[f.head].words[word]
	f.touch(word)
	return v
}

// Read64 reads words a and b (half 0) or c and d (half 1) in one access, with the word at the
// lower address in the lower half. Reading only the second half does not pop (000 §3.2.3.1).
func (f *FIFO) Read64(half int) uint64 {
	if f.level == 0 {
		return 0
	}
	w := &f.ring[f.head].words
	v := uint64(w[2*half]) | uint64(w[2*half+1])<<32
	f.touch(2 * half)
	f.touch(2*half + 1)
	return v
}

func (f *FIFO) touch(word int) {
	if word < 3 {
		f.seen |= 1 << uint(word)
		return
	}
	if f.seen == 7 {
		f.Pop()
	}
}

// Pop removes the head. The FIFO must not be empty.
func (f *FIFO) Pop() {
	f.head = (f.head + 1) & (len(f.ring) - 1)
	f.level--
	f.seen = 0
}

// Ext returns the number of bytes of the head's transfer from the faulting address on, as the
// sender stated it; zero when empty.
func (f *FIFO) Ext() uint32 {
	if f.level == 0 {
		return 0
	}
	return f.ring[f.head].ext
}

// Status returns RXFIFO_STATUS: level, overflow, empty, full.
func (f *FIFO) Status() uint32 {
	s := uint32(f.level)
	if f.overflow {
		s |= device.FIFOOverflow
	}
	if f.level == 0 {
		s |= device.FIFOEmpty
	}
	if f.level == f.depth() {
		s |= device.FIFOFull
	}
	return s
}

// ClearStatus handles a write to RXFIFO_STATUS: overflow is W1C.
func (f *FIFO) ClearStatus(v uint32) {
	if v&device.FIFOOverflow != 0 {
		f.overflow = false
	}
}

// Level returns the number of entries.
func (f *FIFO) Level() int { return f.level }

// Peek returns entry i from the head without popping; false past the end.
func (f *FIFO) Peek(i int) (device.FaultEntry, uint32, bool) {
	if i < 0 || i >= f.level {
		return device.FaultEntry{}, 0, false
	}
	e := f.at(i)
	return e.fault, e.ext, true
}

// Entry returns the words and EXT of entry i from the head without popping; zero past the end.
func (f *FIFO) Entry(i int) (words [4]uint32, ext uint32) {
	if i < 0 || i >= f.level {
		return words, 0
	}
	e := f.at(i)
	return e.words, e.ext
}

// Forget makes Push accept the next fault of a source even if it equals an earlier one: the node
// has begun a new life, and its sequence numbers restart.
func (f *FIFO) Forget(source device.NodeID) {
	n := 0
	for _, l := range f.last[:f.lasts] {
		if l.Source != source {
			f.last[n] = l
			n++
		}
	}
	f.lasts = n
}

// Reset empties the FIFO and forgets partial reads of the head.
func (f *FIFO) Reset() { *f = FIFO{ring: f.ring, limit: f.limit} }

// SetLimit limits the FIFO to n entries, 0 for its full depth: for tests that fill it.
func (f *FIFO) SetLimit(n int) { f.limit = n }

func (f *FIFO) depth() int {
	if f.limit > 0 && f.limit < device.FIFODepth {
		return f.limit
	}
	return device.FIFODepth
}
