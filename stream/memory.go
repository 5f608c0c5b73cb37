package stream

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/exanet/pfd/rdma"
)

// Sizes of an endpoint's memory for streams. Values below are defined by this project.
const (
	ringSize  = 2 << 20
	copySize  = 1 << 20 // of bytes to be sent
	endSize   = ringSize + copySize
	wordsStep = (wordsSize + 8 + 63) &^ 63
	ownBeatAt = wordsSize // the source of writes of words alone
	maxEnds   = 4096
	slabEnds  = 8
	keptRings = 8 // of ended connections: their pages stay
)

// memories are the memory of an endpoint's connections. The words of all lie side by side, for one
// descriptor to watch. Rings are made in slabs, absent until they are used, and used again when
// nothing can be written into them any more.
type memories struct {
	ep     *rdma.Endpoint
	words  *rdma.Buffer
	used   int // words that have been taken once
	lent   int // areas
	places []int
	slabs  []*rdma.Buffer
	rings  []rings
	// stale rings are to be discarded, which asks pfd. Those that are retired are not used again.
	stale []rings
}

// rings are an end's ring and copy, in this order.
type rings struct {
	slab    *rdma.Buffer
	at      int
	retired bool
}

var errFull = errors.New("too many connections")

// area is the memory of one end.
type area struct {
	rings
	place int
	words []byte
}

func (m *memories) get() (a area, err error) {
	if m.words == nil {
		if m.words, err = m.ep.Alloc(maxEnds * wordsStep); err != nil {
			return a, err
		}
	}
	if len(m.rings) == 0 {
		slab, err := m.ep.Alloc(slabEnds * endSize)
		if err != nil {
			return a, err
		}
		m.slabs = append(m.slabs, slab)
		for i := slabEnds - 1; i >= 0; i-- {
			m.rings = append(m.rings, rings{slab: slab, at: i * endSize})
		}
	}
	switch n := len(m.places); {
	case n > 0:
		a.place, m.places = m.places[n-1], m.places[:n-1]
	case m.used < maxEnds:
		a.place = m.used
		m.used++
	default:
		return a, fmt.Errorf("%w: %d are open or have failed: close some, or attach again", errFull, maxEnds)
	}
	n := len(m.rings)
	a.rings, m.rings = m.rings[n-1], m.rings[:n-1]
	a.words = m.words.Bytes()[a.place*wordsStep:][:wordsStep]
	clear(a.words)
	m.lent++
	return a, nil
}

// put takes an area back. If something may still be written into it, it is never used again.
func (m *memories) put(a area, retired bool) {
	m.lent--
	if a.retired = retired; !retired {
		m.places = append(m.places, a.place)
	}
	if retired || len(m.rings) >= keptRings {
		m.stale = append(m.stale, a.rings)
	} else {
		m.rings = append(m.rings, a.rings)
	}
}

// discard returns the pages of stale rings to the kernel, without the lock, and those that may
// be used again.
func discard(stale []rings) (again []rings) {
	for _, r := range stale {
		// It fails where pages cannot be taken out of their file: they stay.
		_ = r.slab.Discard(r.at, endSize)
		if !r.retired {
			again = append(again, r)
		}
	}
	return again
}

// free returns all memory. No connection uses it any more.
func (m *memories) free() {
	if m.words != nil {
		_ = m.words.Free() // the attachment has ended
	}
	for _, s := range m.slabs {
		_ = s.Free()
	}
	*m = memories{ep: m.ep}
}

func (a *area) ring() []byte { return a.slab.Bytes()[a.at:][:ringSize] }
func (a *area) copy() []byte { return a.slab.Bytes()[a.at+ringSize:][:copySize] }

// pair loads two words that the device writes, the last first: it is written last.
func (a *area) pair(at int) (first, last uint64) {
	last = a.word(at + 8)
	return a.word(at), last
}

func (a *area) word(at int) uint64 {
	w, err := rdma.Word(a.words, uint64(at))
	if err != nil {
		return 0 // not reached: words are aligned
	}
	return atomic.LoadUint64(w)
}

// ownBeat counts one beat, and returns where.
func (a *area) ownBeat() []byte {
	if w, err := rdma.Word(a.words, ownBeatAt); err == nil {
		atomic.AddUint64(w, 1)
	}
	return a.words[ownBeatAt:][:8]
}
