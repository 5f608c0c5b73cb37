package smmu

// Sizes of the TLB levels (spec/hardware.md 1; 002 III.B).
const (
	l1Entries = 128 // fully associative
	l2Sets    = 512
	l2Ways    = 4
)

type hit uint8

const (
	miss hit = iota
	hitL1
	hitL2
)

// tlb models the two levels. Over a process's own page tables it decides
// nothing: each access re-reads residency, because a board's TLB hears of
// unmapping by broadcast and ours cannot (spec/faultpath.md).
type tlb struct {
	l1    [l1Entries]uint64
	index map[uint64]uint8 // tag to its place in l1
	hand  uint8            // next victim of l1, round robin
	l2    [l2Sets][l2Ways]uint64
	next  [l2Sets]uint8 // next victim of a set
}

// tag names a page of a bank; never zero.
func tag(bank int, page uint64) uint64 { return 1<<63 | uint64(bank)<<56 | page }

func (t *tlb) reset() {
	*t = tlb{index: make(map[uint64]uint8, 2*l1Entries)}
}

// lookup finds a page whose walk succeeds, and enters it where it was missing.
func (t *tlb) lookup(bank int, page uint64) hit {
	k := tag(bank, page)
	if _, ok := t.index[k]; ok {
		return hitL1
	}
	set := page % l2Sets
	for _, w := range t.l2[set] {
		if w == k {
			t.enterL1(k)
			return hitL2
		}
	}
	t.l2[set][t.next[set]] = k
	t.next[set] = (t.next[set] + 1) % l2Ways
	t.enterL1(k)
	return miss
}

func (t *tlb) enterL1(k uint64) {
	if old := t.l1[t.hand]; old != 0 {
		delete(t.index, old)
	}
	t.l1[t.hand] = k
	t.index[k] = t.hand
	t.hand = (t.hand + 1) % l1Entries
}

func (t *tlb) invalidate(bank int, page uint64) {
	k := tag(bank, page)
	if i, ok := t.index[k]; ok {
		t.l1[i] = 0
		delete(t.index, k)
	}
	set := &t.l2[page%l2Sets]
	for i := range set {
		if set[i] == k {
			set[i] = 0
		}
	}
}

func (t *tlb) invalidateBank(bank int) {
	const bankBits = 1<<63 | 0x7f<<56
	want := tag(bank, 0)
	for i, k := range t.l1 {
		if k != 0 && k&bankBits == want {
			delete(t.index, k)
			t.l1[i] = 0
		}
	}
	for s := range t.l2 {
		for i, k := range t.l2[s] {
			if k != 0 && k&bankBits == want {
				t.l2[s][i] = 0
			}
		}
	}
}
