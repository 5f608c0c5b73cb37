package pagein

import (
	"math/rand/v2"
	"testing"
)

// played is the result of a pattern.
type played struct{ faults, brought, unused uint64 }

// memory is the memory in which a domain's policy pages in: pages are resident after their first
// fault, or because they were read ahead.
type memory struct {
	ahead  Ahead
	there  map[uint64]bool // false: read ahead and not used yet
	faults uint64
	t      *testing.T
}

// transfer writes n pages, starting with page, as Adaptive pages them in.
func (m *memory) transfer(page, n uint64) {
	m.t.Helper()
	for p := page; p < page+n; p++ {
		used, there := m.there[p]
		switch {
		case !there:
			m.faults++
			before, asked, absent := m.ahead.Brought, uint64(0), uint64(0)
			rest, ahead := m.ahead.Fault(p, page+n-p, true, nil)
			for q := p; q < p+rest; q++ {
				if _, there := m.there[q]; !there {
					m.there[q] = true
					absent++
				}
			}
			m.ahead.Paged(rest, absent)
			for _, r := range ahead {
				for q := r.Start; q < r.End; q++ {
					asked++
					if _, there := m.there[q]; !there {
						m.there[q] = false
					}
				}
			}
			if asked != m.ahead.Brought-before {
				m.t.Fatalf("Brought grows by %d, of %d pages", m.ahead.Brought-before, asked)
			}
		case !used:
			m.there[p] = true
		}
	}
	if risk, may := m.ahead.risk(), aheadCredit+m.ahead.useful/aheadShare; risk > may {
		m.t.Fatalf("%d pages may be of no use: at most %d", risk, may)
	}
}

func play(t *testing.T, pattern func(*memory)) played {
	t.Helper()
	m := &memory{there: map[uint64]bool{}, t: t}
	pattern(m)
	return played{m.faults, m.ahead.Brought, m.ahead.Unused}
}

// The faults of each pattern, counted by hand where it has a loop; fixed policies have one per
// transfer.
func TestAhead(t *testing.T) {
	for _, tt := range []struct {
		name    string
		want    played
		pattern func(*memory)
	}{
		{"one page repeatedly", played{faults: 1}, func(m *memory) {
			for range 100 {
				m.transfer(7, 1)
			}
		}},
		// 0, 1 (2..5), 6 (7..14), 15 (16..31), 32 (16 and 32/8 = 20 pages: 33..52), ...
		{"sequential, a page each", played{faults: 4, brought: 4 + 8 + 16}, func(m *memory) {
			for p := range uint64(32) {
				m.transfer(p, 1)
			}
		}},
		{"sequential, 4 pages each", played{faults: 4, brought: 4 + 8 + 16}, func(m *memory) {
			for p := range uint64(11) {
				m.transfer(4*p, 4)
			}
		}},
		{"a transfer longer than the read-ahead", played{faults: 4}, func(m *memory) {
			for p := range uint64(4) {
				m.transfer(256*p, 256)
			}
		}},
		// One of each 20 pages, at varying positions. The first transfer's 256 pages are paged in
		// for 13 of them; in the next seven each of the 89 faults pages in only its own page.
		{"a page in 20 absent", played{faults: 1 + 89}, func(m *memory) {
			for p := range uint64(8 * 256) {
				if k := p / 20; p%20 != k*k*3%20 {
					m.there[p] = true
				}
			}
			for p := range uint64(8) {
				m.transfer(256*p, 256)
			}
		}},
		// 0, 1, 2 (3..6), 7 (8..15), 16 (17..32): elements of 8 pages.
		{"strided", played{faults: 5, brought: 4 + 8 + 16}, func(m *memory) {
			for p := range uint64(33) {
				m.transfer(8*p, 1)
			}
		}},
		// At page 15 one stream has 16 + 31/8 pages less the 8 of the other, which then has 16 +
		// 32/8 less these.
		{"two streams, alternating", played{faults: 8, brought: 2*(4+8) + 11 + 9}, func(m *memory) {
			for p := range uint64(16) {
				m.transfer(p, 1)
				m.transfer(1<<20+p, 1)
			}
		}},
		{"each further than the last", played{faults: 40}, func(m *memory) {
			for p := range uint64(40) {
				m.transfer(p*p*4, 1)
			}
		}},
		{"backwards", played{faults: 40}, func(m *memory) {
			for p := range uint64(40) {
				m.transfer(1000-2*p, 1)
			}
		}},
		{"sequential, and then elsewhere", played{faults: 3 + aheadStreams, brought: 4 + 8, unused: 8}, func(m *memory) {
			for p := range uint64(7) {
				m.transfer(p, 1)
			}
			for p := range uint64(aheadStreams) {
				m.transfer((p+1)<<20, 1)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := play(t, tt.pattern); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// A long sequential stream faults once per 64 pages.
func TestAheadLong(t *testing.T) {
	got := play(t, func(m *memory) {
		for p := range uint64(4096) {
			m.transfer(p, 1)
		}
	})
	if got.faults > 4096/aheadMost*3/2 || got.unused != 0 {
		t.Errorf("%+v", got)
	}
}

// Whatever the pattern, possibly unused pages stay within the bound (memory.transfer).
func FuzzAhead(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		play(t, func(m *memory) {
			at := uint64(1 << 30)
			for range 2000 {
				n := uint64(1) << rnd.IntN(5)
				switch rnd.IntN(8) {
				case 0:
					at = 1<<30 + rnd.Uint64N(1<<16)
				case 1:
					at += rnd.Uint64N(64)
				case 2:
					at -= rnd.Uint64N(64)
				default:
					at += n
				}
				m.transfer(at, n)
			}
		})
	})
}
