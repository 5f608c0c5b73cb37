package dht

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gsas"
)

// words is a model of the address space for one tree: each operation is done at once, as a unit does it.
// live_linux_test.go has the live address space, and sim_test.go the simulated one.
type words struct {
	mu     sync.Mutex // parts of a large record come at once
	at     map[gsas.Address][4]uint64
	pages  map[gsas.Address]bool
	runs   map[gsas.Address]int
	next   map[device.NodeID]uint64
	alive  map[uint32]bool
	limit  int // pages
	before func(verb string, at gsas.Address) error
}

var _ Memory = (*words)(nil)

const directory = gsas.Address(1<<48 | 1<<34 - gsas.PageSize)

func newWords() *words {
	return &words{
		at: make(map[gsas.Address][4]uint64), pages: make(map[gsas.Address]bool), runs: make(map[gsas.Address]int),
		next: make(map[device.NodeID]uint64), alive: make(map[uint32]bool), limit: 1 << 20,
	}
}

func (m *words) begin(verb string, at gsas.Address) error {
	if m.before != nil {
		if err := m.before(verb, at); err != nil {
			return err
		}
	}
	if at%elementBytes != 0 && verb != "add" || !m.pages[at&^(gsas.PageSize-1)] {
		return fmt.Errorf("%s at %#x: %w", verb, at, gsas.ErrAddress)
	}
	return nil
}

func (m *words) Load256(_ context.Context, at gsas.Address) ([4]uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.begin("load", at)
	return m.at[at], err
}

func (m *words) Store256(_ context.Context, at gsas.Address, w [4]uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin("store", at); err != nil {
		return err
	}
	m.at[at] = w
	return nil
}

func (m *words) CompareStore256(_ context.Context, at gsas.Address, expected uint64, w [4]uint64) ([4]uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin("compare", at); err != nil {
		return [4]uint64{}, err
	}
	old := m.at[at]
	if old[0] == expected {
		m.at[at] = w
	}
	return old, nil
}

func (m *words) FetchAdd(_ context.Context, at gsas.Address, n uint64) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin("add", at); err != nil {
		return 0, err
	}
	w := m.at[at]
	old := w[0]
	w[0] += n
	m.at[at] = w
	return old, nil
}

func (m *words) Alloc(_ context.Context, node device.NodeID, pages uint64, hint gsas.Address) (gsas.Address, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.before != nil {
		if err := m.before("alloc", 0); err != nil {
			return 0, err
		}
	}
	if len(m.pages)+int(pages) > m.limit {
		return 0, gsas.ErrRoom
	}
	at := hint
	if at == 0 || m.pages[at] {
		at = gsas.Address(node+1)<<48 | gsas.Address(m.next[node]+1)*gsas.PageSize
		m.next[node] += pages
	}
	for i := range pages {
		m.pages[at+gsas.Address(i)*gsas.PageSize] = true
	}
	m.runs[at] = int(pages)
	return at, nil
}

func (m *words) Free(_ context.Context, at gsas.Address) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.runs[at] == 0 {
		return gsas.ErrAddress
	}
	for i := range m.runs[at] {
		page := at + gsas.Address(i*gsas.PageSize)
		delete(m.pages, page)
		for e := range gsas.Address(gsas.PageSize / elementBytes) {
			delete(m.at, page+e*elementBytes)
		}
	}
	delete(m.runs, at)
	return nil
}

func (m *words) Alive(_ context.Context, thread uint32) (bool, error) { return m.alive[thread], nil }
func (m *words) Directory() gsas.Address                              { return directory }

// A client's operations pass through a coroutine each, so that a seed says in which order the operations
// of several clients are done.
type client struct {
	*words
	pause func() bool
}

func (c client) Load256(ctx context.Context, at gsas.Address) ([4]uint64, error) {
	if !c.pause() {
		return [4]uint64{}, context.Canceled
	}
	return c.words.Load256(ctx, at)
}

func (c client) Store256(ctx context.Context, at gsas.Address, w [4]uint64) error {
	if !c.pause() {
		return context.Canceled
	}
	return c.words.Store256(ctx, at, w)
}

func (c client) CompareStore256(ctx context.Context, at gsas.Address, expected uint64, w [4]uint64) ([4]uint64, error) {
	if !c.pause() {
		return [4]uint64{}, context.Canceled
	}
	return c.words.CompareStore256(ctx, at, expected, w)
}

func (c client) Alloc(ctx context.Context, node device.NodeID, pages uint64, hint gsas.Address) (gsas.Address, error) {
	if !c.pause() {
		return 0, context.Canceled
	}
	return c.words.Alloc(ctx, node, pages, hint)
}

// interleave runs clients with the operations of their memory in an order that a seed gives. A client
// that has a life (lives, in operations; 0 means no limit) stops after that many, in the middle of a call.
func interleave(seed uint64, m *words, lives []int, run ...func(c Memory)) {
	r := rand.New(rand.NewPCG(seed, 1))
	type turn struct {
		next func() (struct{}, bool)
		stop func()
		left int
	}
	turns := make([]*turn, len(run))
	for i, f := range run {
		next, stop := iter.Pull(func(yield func(struct{}) bool) {
			f(client{m, func() bool { return yield(struct{}{}) }})
		})
		turns[i] = &turn{next: next, stop: stop, left: -1}
		if i < len(lives) && lives[i] > 0 {
			turns[i].left = lives[i]
		}
	}
	for len(turns) > 0 {
		i := r.IntN(len(turns))
		t := turns[i]
		t.left--
		_, more := struct{}{}, false
		if t.left != -1 {
			_, more = t.next()
		}
		if !more || t.left == 0 {
			t.stop()
			turns = append(turns[:i], turns[i+1:]...)
		}
	}
}
