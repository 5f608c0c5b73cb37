package workload

import "encoding/binary"

// word returns word i of the pattern of a seed (splitmix64 over the index), so
// that any word of any transfer can be checked without the others. It must not grow
// the stack, because a forked child (forkChild) calls it.
//
//go:nosplit
func word(seed, i uint64) uint64 {
	z := seed + (i+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// fill writes the pattern into b, which starts at word first of its area. The length
// of b must be a multiple of 8.
func fill(b []byte, seed, first uint64) {
	for i := uint64(0); len(b) >= 8; i++ {
		binary.LittleEndian.PutUint64(b, word(seed, first+i))
		b = b[8:]
	}
}

// content describes the content of an area: the pattern of a seed on the pages that its
// state writes, zeros on the others.
type content struct {
	State State
	Seed  uint64
}

// word returns word i of the area.
func (c content) word(i uint64) uint64 {
	if !c.State.written(int(i * 8 / pageSize)) {
		return 0
	}
	return word(c.Seed, i)
}

// at returns the eight bytes of the area at pos, which need not be aligned.
func (c content) at(pos uint64) uint64 {
	i, r := pos/8, pos%8*8
	if r == 0 {
		return c.word(i)
	}
	return c.word(i)>>r | c.word(i+1)<<(64-r)
}
