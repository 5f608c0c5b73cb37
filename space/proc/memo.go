package proc

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/device"
)

// The reported copy-on-write pages are kept in sets of four, chosen by the low bits of the page
// number. So the pages of one walk never evict each other.
const (
	cowSets = 256
	cowWays = 4
)

// hints is how many faults are remembered, one for each page of a walk, chosen by the low bits of
// the page number.
const hints = 64

// hint is the entry that the last walk over a page saw when it reported a fault.
type hint struct {
	page  uint64 // page number; 0: none (no user of RDMA maps page 0)
	entry Entry
}

// freshTime is how long the next walk may use the pagemap entry read after a page-in. It is
// defined here: the retransmission follows within microseconds, as the move follows a walk.
const freshTime = 50 * time.Microsecond

// memo is a Process's state between calls. Its lock is held for a few loads and stores and never
// over a system call: a call that is stuck in the kernel must not block the others.
type memo struct {
	idle atomic.Bool // cow is empty: a walk without faults need not lock

	mu sync.Mutex
	// cow holds the pages whose copy-on-write fault was reported and that have been neither
	// exclusive nor absent in a walk since.
	cow     [cowSets][cowWays]uint64
	used    int
	victim  uint8
	mapping Mapping // looked up last
	hints   [hints]hint
	paged   hint // the page that was paged in last
	when    time.Time

	fresh atomic.Bool // paged is for the next walk; if false, a walk need not lock
}

// walked records the result of a walk over pages from number page on. The bitmaps are the absent
// pages, the present pages that must be copied first, and the pages on which copy-on-write
// matters. It returns the pages of shared that have not been reported before.
func (m *memo) walked(page uint64, pages int, entries []Entry, absent, shared, cow uint64) (report uint64) {
	m.mu.Lock()
	for i := range pages {
		bit := uint64(1) << i
		switch {
		case shared&bit != 0:
			if m.remember(page + uint64(i)) {
				report |= bit
			}
		case cow&bit != 0 && m.used > 0:
			m.forget(page + uint64(i))
		}
		if (absent|report)&bit != 0 {
			m.hints[(page+uint64(i))%hints] = hint{page + uint64(i), entries[i]}
		}
	}
	m.idle.Store(m.used == 0)
	m.mu.Unlock()
	return report
}

// last returns the mapping that was looked up last.
func (m *memo) last() Mapping {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mapping
}

// keep remembers a mapping.
func (m *memo) keep(mp *Mapping) {
	m.mu.Lock()
	m.mapping = *mp
	m.mu.Unlock()
}

// surprise forgets the mapping that was looked up last.
func (m *memo) surprise() {
	m.mu.Lock()
	m.mapping = Mapping{}
	m.mu.Unlock()
}

// pagedIn records a page's pagemap entry after a write page-in.
func (m *memo) pagedIn(page uint64, e Entry) {
	if m.idle.Load() && e.Private() {
		return
	}
	m.mu.Lock()
	if e.Private() || !e.Present() {
		m.forget(page)
	} else {
		m.remember(page)
	}
	m.idle.Store(m.used == 0)
	m.mu.Unlock()
}

// keepEntry records the pagemap entry, just read, of a page that was paged in.
func (m *memo) keepEntry(page uint64, e Entry) {
	m.mu.Lock()
	m.paged, m.when = hint{page, e}, time.Now()
	m.mu.Unlock()
	m.fresh.Store(true)
}

// entry returns the recorded entry if this is the first walk since and covers only that page.
func (m *memo) entry(page uint64, pages int) (Entry, bool) {
	if !m.fresh.Load() || !m.fresh.Swap(false) || pages != 1 {
		return 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.paged.entry, m.paged.page == page && time.Since(m.when) < freshTime
}

// take returns and removes the hint of the page of va.
func (m *memo) take(va device.VA) (e Entry, ok bool) {
	page := uint64(va) >> device.PageShift
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := &m.hints[page%hints]; h.page == page && page != 0 {
		e, ok = h.entry, true
		h.page = 0
	}
	return e, ok
}

// remember records a reported page and reports whether it was new.
func (m *memo) remember(page uint64) bool {
	set := &m.cow[page%cowSets]
	free := -1
	for i, p := range set {
		if p == page {
			return false
		}
		if p == 0 {
			free = i
		}
	}
	if free < 0 {
		m.victim++
		free = int(m.victim % cowWays)
		m.used--
	}
	set[free] = page
	m.used++
	return true
}

// forget drops a page.
func (m *memo) forget(page uint64) {
	set := &m.cow[page%cowSets]
	for i, p := range set {
		if p == page {
			set[i] = 0
			m.used--
			return
		}
	}
}
