package user

import (
	"slices"
	"testing"
)

// TestMappings compares the set with a plain list, over many random steps.
func TestMappings(t *testing.T) {
	for seed := range uint64(8) {
		mapsModel(t, func(n uint64) func() uint64 {
			x := n*0x9e3779b97f4a7c15 + 1
			return func() uint64 { x ^= x << 13; x ^= x >> 7; x ^= x << 17; return x }
		}(seed), 6000)
	}
}

func FuzzMappings(f *testing.F) {
	f.Add([]byte{1, 0, 1, 1, 1, 1, 2, 0, 4})
	f.Add([]byte{3, 1, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		i := 0
		mapsModel(t, func() uint64 {
			if i >= len(b) {
				return 0
			}
			i++
			return uint64(b[i-1])
		}, len(b)/3)
	})
}

func mapsModel(t *testing.T, next func() uint64, steps int) {
	var m mappings
	var model []mapping
	for range steps {
		op, addr, size := next()%4, next()%4096, next()%16
		last := addr + size
		if op == 3 && size == 15 {
			addr, last = 0, ^uint64(0) // everything
		}
		hit, cut := false, false
		for _, e := range model {
			if e.addr <= last && e.last >= addr {
				hit = true
				cut = cut || e.addr < addr || e.last > last
			}
		}
		if m.overlaps(addr, last) != hit || m.cuts(addr, last) != cut {
			t.Fatalf("[%d,%d]: overlaps %v cuts %v, want %v %v", addr, last, m.overlaps(addr, last), m.cuts(addr, last), hit, cut)
		}
		switch {
		case op != 3 && !hit:
			e := mapping{addr: addr, last: last}
			m.insert(e)
			model = append(model, e)
		case op == 3 && !cut:
			n := 0
			m.remove(addr, last, func(mapping) { n++ })
			before := len(model)
			model = slices.DeleteFunc(model, func(e mapping) bool { return e.addr >= addr && e.last <= last })
			if n != before-len(model) {
				t.Fatalf("[%d,%d]: %d removed, want %d", addr, last, n, before-len(model))
			}
		}
		if m.n != len(model) {
			t.Fatalf("%d mappings, want %d", m.n, len(model))
		}
	}
	at := uint64(0)
	for _, p := range m.pieces {
		if len(p) == 0 || len(p) > pieceMax {
			t.Fatalf("a piece of %d", len(p))
		}
		for _, e := range p {
			if e.addr < at {
				t.Fatalf("%d is out of order", e.addr)
			}
			at = e.last
		}
	}
}
