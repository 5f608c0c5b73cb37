package user

import "testing"

// TestMappings compares the set with a plain array of addresses, over many random
// steps.
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

// mapsModel maps and unmaps ranges of some 4,000 addresses. The file's offsets are chosen so that
// ranges are often adjacent in the file, too.
func mapsModel(t *testing.T, next func() uint64, steps int) {
	const size = 4096 + 16
	var m mappings
	var model [size]mapping   // of one address each; rights 0: none
	made := map[uint64]bool{} // where a mapping by messages began, or was cut
	runs := func() (n int) {
		for a, e := range model {
			switch {
			case e.rights == 0:
			case e.file == noFile && !made[uint64(a)] && a > 0 && model[a-1].rights != 0:
			case a == 0 || model[a-1].rights == 0 || !model[a-1].adjoins(e):
				n++
			}
		}
		return n
	}
	for step := range steps {
		op, addr, more := next()%4, next()%4096, next()%16
		last, all := addr+more, addr+more
		if op == 3 && more == 15 {
			addr, last, all = 0, size-1, ^uint64(0) // everything
		}
		hit, held := false, uint64(0)
		for _, e := range model[addr : last+1] {
			if e.rights != 0 {
				hit = true
				held++
			}
		}
		if m.overlaps(addr, all) != hit {
			t.Fatalf("[%d,%d]: overlaps %v, want %v", addr, last, !hit, hit)
		}
		switch {
		case op != 3 && !hit:
			e := mapping{addr, last, addr, uint32(op), DMARead}
			if op == 2 {
				e.file, e.off = noFile, 0
			}
			if more == 3 {
				e.rights = DMAWrite
			}
			m.insert(e)
			for a := addr; a <= last+1; a++ {
				made[a] = a == addr || a > last
			}
			for a := addr; a <= last; a++ {
				model[a] = mapping{a, a, e.off + (a - addr), e.file, e.rights}
			}
		case op == 3:
			m.remove(addr, all, func(e mapping) {
				held -= e.last - e.addr + 1
				if w := model[e.addr]; w.file != e.file || w.rights != e.rights || e.file != noFile && w.off != e.off {
					t.Fatalf("[%d,%d]: removed %+v, want as %+v", addr, last, e, w)
				}
			})
			clear(model[addr : last+1])
			made[last+1] = true
			if held != 0 {
				t.Fatalf("[%d,%d]: %d addresses were not removed", addr, last, held)
			}
		}
		if step%64 != 0 && step != steps-1 {
			continue
		}
		if n := runs(); m.n != n {
			t.Fatalf("%d mappings, want %d", m.n, n)
		}
		for a, w := range model {
			e, ok := m.find(uint64(a))
			if ok != (w.rights != 0) || ok && (e.file != w.file || e.rights != w.rights || e.file != noFile && e.off+(uint64(a)-e.addr) != w.off) {
				t.Fatalf("%d: %+v %v, want %+v", a, e, ok, w)
			}
		}
	}
	at := uint64(0)
	for i, p := range m.pieces {
		if len(p) == 0 || cap(p) > pieceMax || i > 0 && len(p)+len(m.pieces[i-1]) <= pieceMax/2 {
			t.Fatalf("a piece of %d, with room for %d", len(p), cap(p))
		}
		for _, e := range p {
			if e.addr < at {
				t.Fatalf("%d is out of order", e.addr)
			}
			at = e.last
		}
	}
}

// TestMappingsOrders: the number of pieces stays within its bound, in whatever order mappings are
// added and removed.
func TestMappingsOrders(t *testing.T) {
	const n = 1 << 16
	for name, order := range map[string]func(i uint64) uint64{
		"ascending":  func(i uint64) uint64 { return i },
		"descending": func(i uint64) uint64 { return n - i },
		"scattered":  func(i uint64) uint64 { return i * 0x9e3779b1 % n },
		"from both":  func(i uint64) uint64 { return n + i - i%2*2*i },
	} {
		var m mappings
		for i := range uint64(n) {
			at := order(i) << 13
			m.insert(mapping{at, at + 4095, 0, noFile, DMARead})
		}
		if most := n / (pieceMax / 2); m.n != n || len(m.pieces) > most {
			t.Errorf("%s: %d mappings in %d pieces, want %d in at most %d", name, m.n, len(m.pieces), n, most)
		}
		// Two of three are removed: the remaining pieces are joined.
		for i := range uint64(2 * n) {
			if i%3 != 0 {
				m.remove(i<<13, i<<13+4095, func(mapping) {})
			}
		}
		if most := m.n/(pieceMax/4) + 1; len(m.pieces) > most {
			t.Errorf("%s: %d mappings left in %d pieces, want at most %d", name, m.n, len(m.pieces), most)
		}
	}
}
