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

// tlb models the two levels. It decides nothing about a process's own page tables: each access
// re-reads residency, because a board's TLB is told of unmapping by broadcast and this model
// cannot be (spec/faultpath.md).
type tlb struct {
	l1     [l1Entries]uint64
	bucket [l1Buckets]uint8 // first entry of l1 with the tag's hash, plus one; 0 for none
	chain  [l1Entries]uint8 // the next entry with the same hash, plus one
	hand   uint8            // next victim of l1, round robin
	l2     [l2Sets][l2Ways]uint64
	next   [l2Sets]uint8 // next victim of each set
}

// l1Buckets is the number of hashes of l1: neighbouring pages have neighbouring hashes, so that
// chains are short.
const l1Buckets = 2 * l1Entries

func hash(k uint64) uint8 { return uint8(k ^ k>>52) }

// tag identifies a page of a bank; it is never zero.
func tag(bank int, page uint64) uint64 { return 1<<63 | uint64(bank)<<56 | page }

func (t *tlb) reset() { *t = tlb{} }

// inL1 returns the index of a tag in l1, -1 if it is not there.
func (t *tlb) inL1(k uint64) int {
	for i := t.bucket[hash(k)]; i != 0; i = t.chain[i-1] {
		if t.l1[i-1] == k {
			return int(i - 1)
		}
	}
	return -1
}

// lookup looks up a page whose walk succeeds, and inserts it if it is missing.
func (t *tlb) lookup(bank int, page uint64) hit {
	k := tag(bank, page)
	if t.inL1(k) >= 0 {
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
	i := t.hand
	t.leaveL1(int(i))
	h := hash(k)
	t.l1[i], t.chain[i], t.bucket[h] = k, t.bucket[h], i+1
	t.hand = (i + 1) % l1Entries
}

// leaveL1 empties an entry of l1.
func (t *tlb) leaveL1(i int) {
	k := t.l1[i]
	if k == 0 {
		return
	}
	at := &t.bucket[hash(k)]
	for int(*at) != i+1 {
		at = &t.chain[*at-1]
	}
	*at = t.chain[i]
	t.l1[i], t.chain[i] = 0, 0
}

// invalidate drops a page and reports whether it was present.
func (t *tlb) invalidate(bank int, page uint64) (held bool) {
	k := tag(bank, page)
	if i := t.inL1(k); i >= 0 {
		t.leaveL1(i)
		held = true
	}
	set := &t.l2[page%l2Sets]
	for i := range set {
		if set[i] == k {
			set[i], held = 0, true
		}
	}
	return held
}

func (t *tlb) invalidateBank(bank int) {
	const bankBits = 1<<63 | 0x7f<<56
	want := tag(bank, 0)
	for i, k := range t.l1 {
		if k != 0 && k&bankBits == want {
			t.leaveL1(i)
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
