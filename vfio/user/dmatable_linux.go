package user

import (
	"slices"
	"sort"
)

// mapping is one DMA mapping: the range [addr, last] of DMA addresses.
type mapping struct {
	addr, last uint64
	off        uint64  // of addr in the file's bytes
	file       *memory // nil: reached by messages
	rights     uint32
}

// mappings is the set of DMA mappings, by address, never overlapping. A guest
// that maps page by page makes tens of thousands of them: they are kept in
// sorted pieces of bounded length, so that an insertion moves a few hundred at
// most.
type mappings struct {
	pieces [][]mapping // none empty
	n      int
}

const pieceMax = 512 // ours: some 20 KiB

// seek gives the place of the first mapping whose last address is not below
// addr; ok is false where there is none.
func (t *mappings) seek(addr uint64) (p, i int, ok bool) {
	p = sort.Search(len(t.pieces), func(k int) bool {
		piece := t.pieces[k]
		return piece[len(piece)-1].last >= addr
	})
	if p == len(t.pieces) {
		return p, 0, false
	}
	piece := t.pieces[p]
	i = sort.Search(len(piece), func(k int) bool { return piece[k].last >= addr })
	return p, i, true
}

// find gives the mapping that holds addr.
func (t *mappings) find(addr uint64) (mapping, bool) {
	p, i, ok := t.seek(addr)
	if !ok || t.pieces[p][i].addr > addr {
		return mapping{}, false
	}
	return t.pieces[p][i], true
}

// overlaps says whether any mapping has an address in [addr, last].
func (t *mappings) overlaps(addr, last uint64) bool {
	p, i, ok := t.seek(addr)
	return ok && t.pieces[p][i].addr <= last
}

// cuts says whether a mapping lies partly inside [addr, last].
func (t *mappings) cuts(addr, last uint64) bool {
	if m, ok := t.find(addr); ok && (m.addr < addr || m.last > last) {
		return true
	}
	m, ok := t.find(last)
	return ok && (m.addr < addr || m.last > last)
}

// insert adds a mapping that overlaps none.
func (t *mappings) insert(m mapping) {
	t.n++
	if len(t.pieces) == 0 {
		t.pieces = append(t.pieces, []mapping{m})
		return
	}
	p, i, ok := t.seek(m.addr)
	if !ok {
		p = len(t.pieces) - 1
		i = len(t.pieces[p])
	}
	t.pieces[p] = slices.Insert(t.pieces[p], i, m)
	if piece := t.pieces[p]; len(piece) > pieceMax {
		// An ascending run leaves full pieces behind, not halves.
		at := pieceMax / 2
		if i == pieceMax {
			at = pieceMax
		}
		upper := append(make([]mapping, 0, pieceMax/2), piece[at:]...)
		clear(piece[at:])
		t.pieces[p] = piece[:at]
		t.pieces = slices.Insert(t.pieces, p+1, upper)
	}
}

// remove takes every mapping inside [addr, last] out and gives each to f.
func (t *mappings) remove(addr, last uint64, f func(mapping)) {
	p, i, ok := t.seek(addr)
	for ok && p < len(t.pieces) {
		piece := t.pieces[p]
		j := i
		for j < len(piece) && piece[j].last <= last {
			f(piece[j])
			j++
		}
		more := j == len(piece)
		t.n -= j - i
		if i == 0 && more {
			t.pieces = slices.Delete(t.pieces, p, p+1)
		} else {
			t.pieces[p] = slices.Delete(piece, i, j)
			p++
		}
		i = 0
		ok = more
	}
}
