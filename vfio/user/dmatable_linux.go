package user

import (
	"slices"
	"sort"
)

// mapping is one DMA mapping: the range [addr, last] of DMA addresses. It has no pointers, so the
// garbage collector does not scan millions of them.
type mapping struct {
	addr, last uint64
	off        uint64 // offset of addr in the file
	file       uint32 // index of the file; noFile: accessed by messages
	rights     uint32
}

const noFile = ^uint32(0)

// mappings is the set of DMA mappings, by address, without overlaps. Mappings that are adjacent,
// in the file too, are merged. A guest's IOMMU makes one mapping for each page, millions of them:
// they are kept in sorted pieces of bounded length, so that an insertion moves a few hundred at
// most.
type mappings struct {
	pieces [][]mapping // none empty, each with room for pieceMax; two neighbours have over pieceMax/2 together
	n      int
}

const pieceMax = 512 // 16 KiB; defined by this project

// seek returns the place of the first mapping whose last address is not below addr; ok is false
// if there is none.
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

// find returns the mapping that holds addr.
func (t *mappings) find(addr uint64) (mapping, bool) {
	p, i, ok := t.seek(addr)
	if !ok || t.pieces[p][i].addr > addr {
		return mapping{}, false
	}
	return t.pieces[p][i], true
}

// overlaps reports whether any mapping has an address in [addr, last].
func (t *mappings) overlaps(addr, last uint64) bool {
	p, i, ok := t.seek(addr)
	return ok && t.pieces[p][i].addr <= last
}

// adjoins reports whether b continues a. Mappings that are accessed by messages are never merged,
// since no message may cross the boundary of a mapping.
func (a mapping) adjoins(b mapping) bool {
	return a.last+1 == b.addr && a.file == b.file && a.file != noFile && a.rights == b.rights && a.off+(b.addr-a.addr) == b.off
}

// before returns the mapping before a place that seek returned.
func (t *mappings) before(p, i int) *mapping {
	switch {
	case i > 0:
		return &t.pieces[p][i-1]
	case p > 0:
		return &t.pieces[p-1][len(t.pieces[p-1])-1]
	}
	return nil
}

// insert adds a mapping that overlaps none.
func (t *mappings) insert(m mapping) {
	p, i, ok := t.seek(m.addr)
	if ok && m.adjoins(t.pieces[p][i]) {
		next := &t.pieces[p][i]
		next.addr, next.off = m.addr, m.off
		if prev := t.before(p, i); prev != nil && prev.adjoins(*next) {
			next.addr, next.off = prev.addr, prev.off
			gone := prev.last
			q, j, _ := t.seek(gone)
			t.cut(q, j, j+1)
		}
		return
	}
	if prev := t.before(p, i); prev != nil && prev.adjoins(m) {
		prev.last = m.last
		return
	}
	t.n++
	switch {
	case len(t.pieces) == 0:
		t.pieces = append(t.pieces, make([]mapping, 0, pieceMax))
		p, i = 0, 0
	case !ok:
		p = len(t.pieces) - 1
		i = len(t.pieces[p])
	}
	if piece := t.pieces[p]; len(piece) == pieceMax {
		// An ascending or descending run of insertions leaves full pieces, not halves.
		at := pieceMax / 2
		switch i {
		case pieceMax:
			at = pieceMax
		case 0:
			at = 0
		}
		t.pieces = slices.Insert(t.pieces, p+1, append(make([]mapping, 0, pieceMax), piece[at:]...))
		t.pieces[p] = piece[:at]
		if i > at || at == pieceMax {
			p, i = p+1, i-at
		}
	}
	t.pieces[p] = slices.Insert(t.pieces[p], i, m)
}

// cut removes places i to j-1 of piece p.
func (t *mappings) cut(p, i, j int) {
	t.n -= j - i
	piece := slices.Delete(t.pieces[p], i, j)
	t.pieces[p] = piece
	if len(piece) == 0 {
		t.pieces = slices.Delete(t.pieces, p, p+1)
	}
	// Small neighbours are joined, so that the pieces stay few.
	for _, q := range []int{p, p - 1} {
		if q >= 0 && q+1 < len(t.pieces) && len(t.pieces[q])+len(t.pieces[q+1]) <= pieceMax/2 {
			t.pieces[q] = append(t.pieces[q], t.pieces[q+1]...)
			t.pieces = slices.Delete(t.pieces, q+1, q+2)
		}
	}
}

// remove removes the addresses [addr, last] and calls f with each mapping, or part of one, that
// it removed. A mapping that it splits becomes two.
func (t *mappings) remove(addr, last uint64, f func(mapping)) {
	for {
		p, i, ok := t.seek(addr)
		if !ok || t.pieces[p][i].addr > last {
			return
		}
		piece := t.pieces[p]
		if m := piece[i]; m.addr < addr || m.last > last {
			// The part inside the range is removed, the rest stays.
			in := mapping{max(m.addr, addr), min(m.last, last), 0, m.file, m.rights}
			in.off = m.off + (in.addr - m.addr)
			switch {
			case m.addr < addr && m.last > last:
				piece[i].last = addr - 1
				t.insert(mapping{last + 1, m.last, m.off + (last + 1 - m.addr), m.file, m.rights})
			case m.addr < addr:
				piece[i].last = addr - 1
			default:
				piece[i].addr, piece[i].off = last+1, m.off+(last+1-m.addr)
			}
			f(in)
			continue
		}
		j := i
		for j < len(piece) && piece[j].last <= last {
			f(piece[j])
			j++
		}
		t.cut(p, i, j)
	}
}
