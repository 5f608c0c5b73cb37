package user

import "encoding/binary"

// vectorTable is the MSI-X vector table and its pending bits (PCI Local Bus 3.0, 6.8.2). It
// stores what a client writes. Interrupts go by eventfd, so address and data have no effect. The
// mask bit is the only state of masking. Three things set it: the table itself, SET_IRQS with its
// mask and unmask actions, and the assignment of an eventfd, which unmasks as the kernel does for
// a vector in use.
type vectorTable struct {
	m       MSIX
	entries []byte   // 16 for each vector: address 8, data 4, control 4 (bit 0: masked)
	pending []uint64 // a bit for each vector
}

const vectorMasked = 1

func newVectorTable(m MSIX) *vectorTable {
	t := &vectorTable{m: m, entries: make([]byte, m.tableSize()), pending: make([]uint64, (m.Vectors+63)/64)}
	for v := range m.Vectors {
		t.setMasked(v, true)
	}
	return t
}

func (t *vectorTable) masked(v int) bool { return t.entries[16*v+12]&vectorMasked != 0 }
func (t *vectorTable) setMasked(v int, on bool) {
	t.entries[16*v+12] &^= vectorMasked
	if on {
		t.entries[16*v+12] |= vectorMasked
	}
}
func (t *vectorTable) isPending(v int) bool { return t.pending[v/64]&(1<<(v%64)) != 0 }
func (t *vectorTable) setPending(v int, on bool) {
	t.pending[v/64] &^= 1 << (v % 64)
	if on {
		t.pending[v/64] |= 1 << (v % 64)
	}
}

// owns reports whether an offset of the BAR belongs to the table or the pending bits rather than
// to the device.
func (t *vectorTable) owns(offset uint64) bool {
	return offset-t.m.Table < t.m.tableSize() || offset-t.m.PBA < t.m.pbaSize()
}

// read returns size bytes (1, 2, 4, 8, aligned) at an offset that owns accepts.
func (t *vectorTable) read(offset uint64, size int) uint64 {
	var word [8]byte
	if o := offset - t.m.Table; o < t.m.tableSize() {
		copy(word[:size], t.entries[o:])
		return binary.LittleEndian.Uint64(word[:])
	}
	o := offset - t.m.PBA
	v := t.pending[o/8] >> (8 * (o % 8))
	if size < 8 {
		v &= 1<<(8*size) - 1
	}
	return v
}

// write stores into the table; the pending bits are read-only. It returns the vector whose mask
// bit changed, or -1.
func (t *vectorTable) write(offset uint64, size int, value uint64) int {
	o := offset - t.m.Table
	if o >= t.m.tableSize() {
		return -1
	}
	v := int(o / 16)
	before := t.masked(v)
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], value)
	for i, b := range word[:size] {
		at := o + uint64(i)
		switch at % 16 {
		case 0: // address bits 1:0 are zero
			b &^= 3
		case 12:
			b &= vectorMasked
		case 13, 14, 15: // reserved
			b = 0
		}
		t.entries[at] = b
	}
	if t.masked(v) == before {
		return -1
	}
	return v
}
