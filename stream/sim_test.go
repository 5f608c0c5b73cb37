package stream

import (
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
)

// world is a simulation of two hosts whose messages are lost, doubled and overtaken, and whose
// writes land in any order, and more than once while they are in flight.
type world struct {
	t     *testing.T
	rng   *rand.Rand
	now   int64
	queue events
	order int
	hosts [2]*simHost
	// loss is how many of 1000 messages are lost, and fail of 1000 writes fail.
	loss, fail int
	nextVA     device.VA
	places     map[device.VA]*place
	live       int             // connections with something to do
	abandoned  map[uint64]bool // connections whose dialer gave up, by their acceptor's key
	frozen     bool            // pfd is stopped: writes do not end
	mute       bool            // pfd is stopped: no message is taken
	held       []func()        // what it does when it goes on
	bad        string
}

type event struct {
	at    int64
	order int
	do    func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// place is memory of an end.
type place struct {
	b    []byte
	free bool // nothing may be written into it any more
}

func (w *world) after(d int64, do func()) {
	w.order++
	heap.Push(&w.queue, event{w.now + d, w.order, do})
}

// next lets the next event happen.
func (w *world) next() {
	v := heap.Pop(&w.queue).(event)
	w.now = max(w.now, v.at)
	v.do()
}

// delay is how long something is under way: mostly short, sometimes longer than a message waits.
func (w *world) delay() int64 {
	if w.rng.IntN(50) == 0 {
		return w.rng.Int64N(int64(30 * time.Millisecond))
	}
	return 500 + w.rng.Int64N(20_000)
}

func (w *world) fault(format string, args ...any) {
	if w.bad == "" {
		w.bad = fmt.Sprintf("at %v: ", time.Duration(w.now)) + fmt.Sprintf(format, args...)
	}
}

func (w *world) alloc(size int) (device.VA, []byte) {
	w.nextVA += maxRing
	p := &place{b: make([]byte, size)}
	w.places[w.nextVA] = p
	return w.nextVA, p.b
}

// at returns n bytes of memory to be written.
func (w *world) at(va device.VA, n int) []byte {
	base := va &^ (maxRing - 1)
	p := w.places[base]
	if p == nil || int(va-base)+n > len(p.b) {
		w.fault("a write to %v", va)
		return make([]byte, n)
	}
	if p.free {
		w.fault("a write into memory that was given back")
	}
	return p.b[va-base:][:n]
}

// simHost is one host, and what it runs.
type simHost struct {
	w      *world
	h      *host
	other  *simHost
	flying int
	wakeup int64
	put0   int // areas given back, of them retired
	lost   int
	queue  []*end
	// stopped: the process does not run. ended: its domain is no more.
	stopped, ended bool
}

// simEnd is the memory of an end, and the program that uses it.
type simEnd struct {
	words, ring []byte
	writes      [slots]simFlight
	credit      simFlight
	beats       uint64

	e               *end
	send, sent, got int // bytes
	early           bool
	closing, shut   bool
	key             uint64
}

type simFlight struct {
	flying bool
	count  int // of flights so far
	err    error
}

func simOf(e *end) *simEnd { return e.mem.(*simEnd) }

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 29)), places: map[device.VA]*place{}, abandoned: map[uint64]bool{}}
	for i := range w.hosts {
		s := &simHost{w: w, wakeup: never}
		s.h = newHost(s, s)
		s.h.node, s.h.iface, s.h.generation = device.NodeID(i), uint8(16+i), device.Generation(7+i)
		w.hosts[i] = s
	}
	w.hosts[0].other, w.hosts[1].other = w.hosts[1], w.hosts[0]
	return w
}

func (s *simHost) message(e *end, words []uint64) bool {
	w := s.w
	if w.rng.IntN(20) == 0 || w.mute {
		return false // no channel
	}
	words = append([]uint64(nil), words...)
	deliver := func() {
		if s.other.stopped {
			return
		}
		from := source{s.h.node, s.h.iface, 5}
		if words[0]>>18&63 == 12 {
			s.other.h.short(w.now, from, words)
		} else {
			s.other.h.connection(w.now, from, words)
		}
		s.other.step()
	}
	if w.rng.IntN(1000) >= w.loss {
		w.after(w.delay(), deliver)
	}
	if w.loss > 0 && w.rng.IntN(20) == 0 {
		w.after(w.delay(), deliver)
	}
	return true
}

func (s *simHost) post(e *end, m *message) bool {
	m.generation = s.h.generation
	words := m.encode()
	sent := s.message(e, words[:])
	if sent && m.op == opShutdown && m.flags&flagAnswer == 0 && e.mem != nil {
		simOf(e).shut = true
	}
	return sent
}

func (s *simHost) short(e *end, _ uint64, words []uint64) bool { return s.message(e, words) }

// start begins a write, which reads its source each time that it is sent.
func (s *simHost) start(f *simFlight, src []byte, dst, notify device.VA, first, last uint64) bool {
	w := s.w
	if s.flying >= 32 || w.rng.IntN(30) == 0 {
		return false
	}
	s.flying++
	*f = simFlight{flying: true, count: f.count + 1}
	if w.frozen {
		w.held = append(w.held, func() { s.fly(f, src, dst, notify, first, last) })
	} else {
		s.fly(f, src, dst, notify, first, last)
	}
	return true
}

// fly performs a write.
func (s *simHost) fly(f *simFlight, src []byte, dst, notify device.VA, first, last uint64) {
	w, count := s.w, f.count
	land := func(b []byte) { copy(w.at(dst, len(b)), b) }
	lasts := (1 + w.rng.Int64N(20)) * w.delay()
	for range w.rng.IntN(4) {
		w.after(w.rng.Int64N(lasts), func() {
			sent := slices.Clone(src)
			w.after(w.rng.Int64N(lasts), func() {
				if f.flying && f.count == count {
					land(sent)
				}
			})
		})
	}
	w.after(w.delay(), func() {
		end := func(err error) {
			f.flying, f.err = false, err
			s.flying--
			s.step()
		}
		if s.other.ended {
			end(errEnded)
			return
		}
		if w.rng.IntN(1000) < w.fail {
			end(errors.New("it failed"))
			late := slices.Clone(src)
			w.after(w.delay(), func() { land(late) })
			return
		}
		land(src)
		binary.LittleEndian.PutUint64(w.at(notify, 8), first)
		s.other.step()
		w.after(w.rng.Int64N(1000), func() {
			binary.LittleEndian.PutUint64(w.at(notify+8, 8), last)
			s.other.step()
			w.after(lasts, func() { end(nil) })
		})
	})
}

func (s *simHost) write(e *end, n, offset uint64, size uint32, first, last uint64) bool {
	m := simOf(e)
	src, dst := make([]byte, 8), e.remote.words+beatAt
	if size > 0 {
		src = e.copy[offset%uint64(len(e.copy)):][:size]
		dst = e.remote.ring + device.VA(offset%uint64(e.remote.size))
	}
	if m.shut {
		s.w.fault("a write after the shutdown")
	}
	if m.writes[n%slots].flying {
		s.w.fault("a slot is used while a write of it is in flight")
	}
	return s.start(&m.writes[n%slots], src, dst, e.remote.words+device.VA(n%slots*slotBytes), first, last)
}

func (s *simHost) credit(e *end, first, last uint64) bool {
	m := simOf(e)
	if m.shut {
		s.w.fault("a credit after the shutdown")
	}
	if m.credit.flying {
		s.w.fault("two credits in flight")
	}
	m.beats++
	return s.start(&m.credit, binary.LittleEndian.AppendUint64(nil, m.beats), e.remote.words+beatAt, e.remote.words+creditAt, first, last)
}

func (s *simHost) landed(e *end, n uint64) (bool, error) {
	f := &simOf(e).writes[n%slots]
	return !f.flying, f.err
}

func (s *simHost) credited(e *end) (bool, error) {
	f := &simOf(e).credit
	return !f.flying, f.err
}

func (s *simHost) slot(e *end, i int) (first, last uint64) {
	b := simOf(e).words[i*slotBytes:]
	return binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
}

func (s *simHost) credits(e *end) (first, last, beat uint64) {
	b := simOf(e).words[creditAt:]
	return binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
}

func (s *simHost) abort(*end) {}

func (s *simHost) equip(e *end) error {
	m := &simEnd{e: e}
	e.mem = m
	e.copy = make([]byte, minRing)
	e.self.size = minRing << s.w.rng.IntN(2)
	e.self.ring, m.ring = s.w.alloc(int(e.self.size))
	e.self.words, m.words = s.w.alloc(wordsSize)
	e.r.ring = m.ring
	return nil
}

func (s *simHost) put(e *end, retired bool) {
	s.put0++
	if retired {
		s.lost++
	}
	for _, va := range []device.VA{e.self.ring, e.self.words} {
		s.w.places[va].free = !retired
	}
}

func (s *simHost) arrived(port uint32, e *end) { s.queue = append(s.queue, e) }

// step does the work of the stack at each event.
func (s *simHost) step() {
	if s.stopped {
		return
	}
	for _, e := range sorted(s.h) {
		s.h.visit(s.w.now, e)
	}
	next := s.h.watch(s.w.now)
	for _, e := range sorted(s.h) {
		next = min(next, e.deadline())
	}
	if next < s.wakeup && next != never {
		s.wakeup = next
		s.w.after(max(next-s.w.now, 1), func() {
			s.wakeup = never
			s.step()
		})
	}
}

// sorted returns the ends in their order: a map's is not the same each time.
func sorted(h *host) (list []*end) {
	for id := uint32(1); id <= h.lastID; id++ {
		if e := h.ends[id]; e != nil {
			list = append(list, e)
		}
	}
	return list
}

// run is the program of one end: it sends m.send bytes and reads until the end of the stream, then
// closes; an early one closes as soon as it has sent.
func (s *simHost) run(m *simEnd) {
	w, e := s.w, m.e
	defer s.step()
	if w.rng.IntN(10) == 0 {
		w.after(w.delay(), func() { e.beat(w.now) })
	}
	if e.err != nil {
		if w.fail == 0 && !w.abandoned[m.key|1] {
			w.fault("a connection was reset: %v", e.err)
		}
		m.finish(s)
		return
	}
	if !e.dialing() {
		if n := e.s.room(min(m.send-m.sent, 1+w.rng.IntN(1<<w.rng.IntN(17)))); n > 0 {
			at := e.s.sent % uint64(len(e.copy))
			for i := range n {
				e.copy[int(at)+i] = pattern(m.key, m.sent+i)
			}
			e.send(w.now, n)
			m.sent += n
		}
		if m.sent == m.send {
			e.endOfStream(w.now)
		}
		if b := e.r.available(); len(b) > 0 && w.rng.IntN(3) > 0 {
			b = b[:1+w.rng.IntN(len(b))]
			for i, v := range b {
				if want := pattern(simOf(e).peerKey(), m.got+i); v != want {
					w.fault("byte %d is %d, want %d", m.got+i, v, want)
					return
				}
			}
			m.got += len(b)
			e.consume(w.now, len(b))
		}
		if over := e.r.fin && len(e.r.available()) == 0; m.sent == m.send && (over || m.early) {
			if over && !m.early && m.got != m.peerSends() {
				w.fault("the stream ends after %d bytes, want %d", m.got, m.peerSends())
			}
			m.finish(s)
			return
		}
		if e.s.stopped && m.sent < m.send {
			m.finish(s) // the peer reads no more
			return
		}
	}
	w.after(w.delay(), func() { s.run(m) })
}

func (m *simEnd) finish(s *simHost) {
	if m.closing {
		return
	}
	m.closing = true
	m.e.close(s.w.now)
	s.w.live--
}

// The two ends of a connection know each other by the dialer's id.
func (m *simEnd) peerKey() uint64 { return m.key ^ 1 }
func (m *simEnd) peerSends() int  { return sizeOf(m.peerKey()) }

func sizeOf(key uint64) int {
	r := rand.New(rand.NewPCG(key, 1))
	return r.IntN(1 << r.IntN(20))
}

func pattern(key uint64, i int) byte { return byte(uint64(i)*2654435761>>8 ^ key*37) }

func (s *simHost) start2(e *end, key uint64, early bool) {
	m := simOf(e)
	m.key, m.send, m.early = key, sizeOf(key), early
	s.w.live++
	s.run(m)
}

// simulate runs connections to their ends.
func simulate(t *testing.T, seed uint64, connections, loss, fail int) *world {
	w := newWorld(t, seed)
	w.loss, w.fail = loss, fail
	from, to := w.hosts[0], w.hosts[1]
	to.h.backlog[80] = 0
	for i := range connections {
		key := seed<<16 | uint64(i)<<1
		early := w.rng.IntN(4) == 0
		w.after(int64(i)*int64(time.Millisecond), func() {
			e, err := from.h.dial(w.now, 1, 17, 80)
			if err != nil {
				w.fault("%v", err)
				return
			}
			from.start2(e, key, early)
			if w.rng.IntN(6) == 0 {
				w.after(w.delay(), func() {
					if m := simOf(e); e.dialing() && !m.closing {
						w.abandoned[key|1] = true
						m.finish(from)
						from.step()
					}
				})
			}
			var accept func()
			accept = func() {
				for j, a := range to.queue {
					if a.peerID == e.id {
						to.queue = append(to.queue[:j:j], to.queue[j+1:]...)
						to.h.backlog[80]--
						to.start2(a, key|1, w.rng.IntN(4) == 0)
						return
					}
				}
				if !simOf(e).closing {
					w.after(int64(time.Millisecond), accept)
				}
			}
			accept()
		})
	}
	for len(w.queue) > 0 && w.bad == "" {
		if w.next(); w.now > int64(time.Hour) {
			w.fault("it does not end: %d connections live", w.live)
		}
		if w.live == 0 { // nobody accepts connections whose dialers have given up
			for _, a := range to.queue {
				a.close(w.now)
			}
			to.queue = nil
			to.step()
		}
		if w.live == 0 && len(from.h.ends) == 0 && len(to.h.ends) == 0 && w.now > int64(connections)*int64(time.Millisecond) {
			break
		}
	}
	// Writes and messages that are still under way must not land anywhere.
	for n := 0; len(w.queue) > 0 && w.bad == "" && n < 10000; n++ {
		w.next()
	}
	return w
}

func TestSimulation(t *testing.T) {
	for seed := range uint64(seeds()) {
		for _, c := range []struct{ loss, fail int }{{0, 0}, {10, 0}, {300, 0}, {100, 5}} {
			const connections = 8
			w := simulate(t, seed, connections, c.loss, c.fail)
			if w.bad != "" {
				t.Fatalf("seed %d, loss %d, fail %d: %s", seed, c.loss, c.fail, w.bad)
			}
			for i, s := range w.hosts {
				if len(s.h.ends) > 0 || w.live > 0 || c.fail == 0 && (s.put0 > connections || s.put0 < connections-len(w.abandoned) || s.lost > 0) {
					t.Fatalf("seed %d, loss %d, fail %d: host %d has %d ends left, %d put back, %d retired, %d live",
						seed, c.loss, c.fail, i, len(s.h.ends), s.put0, s.lost, w.live)
				}
			}
		}
	}
}

// seeds returns how many seeds to simulate: PFD_SOAK=1 runs more.
func seeds() int {
	if os.Getenv("PFD_SOAK") != "" {
		return 2000
	}
	return 15
}
