package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/rdma"
)

// rest is the least time between two arrivals that wake the pump while no goroutine waits. Defined by
// this project.
const rest = int64(time.Millisecond)

// stack is the streams of one endpoint. Its lock guards everything of them but the bytes in rings
// and copies.
type stack struct {
	ep    *rdma.Endpoint
	began time.Time
	pump  *pump

	mu        sync.Mutex
	h         *host
	memory    memories
	listeners map[uint32]*Listener
	parked    int  // goroutines that wait for an event
	spinning  bool // one of them spins
	// planned is when the pump will wake, 0 if it is awake; arrivals says that it wakes when
	// something arrives, too.
	planned  int64
	arrivals bool
	err      error
	// sent are the last messages of kinds 12 and 13, by their numbers.
	sent [2][256]sentMessage
}

type sentMessage struct {
	number uint32
	id     uint32 // of the end
	n      uint64 // of the span
}

// stackOf returns the streams of an endpoint.
func stackOf(ep *rdma.Endpoint) (*stack, error) {
	l, err := ep.Layer(func() (any, error) {
		s := &stack{ep: ep, began: time.Now(), memory: memories{ep: ep}, listeners: map[uint32]*Listener{}}
		s.h = newHost(s, s)
		i := ep.Info()
		s.h.node, s.h.iface, s.h.generation = i.Node, uint8(i.Interface), i.Generation
		var err error
		if s.pump, err = newPump(ep); err != nil {
			return nil, err
		}
		go s.run()
		return s, nil
	}, mailbox.KindConnection, mailbox.KindStream)
	if err != nil {
		return nil, err
	}
	return l.(*stack), nil
}

func (s *stack) now() int64 { return int64(time.Since(s.began)) }

// run moves the connections on until the attachment ends.
func (s *stack) run() {
	for {
		s.mu.Lock()
		next := s.step()
		stale := s.memory.stale
		s.memory.stale = nil
		// While the program's goroutines do all the work, being woken for each arrival would only
		// take a processor from them.
		if s.arrivals = s.parked > 0 || !s.arrivals; !s.arrivals {
			next = min(next, s.now()+rest)
		}
		s.planned = next
		arrivals := s.arrivals
		s.mu.Unlock()
		if len(stale) > 0 {
			again := discard(stale)
			s.mu.Lock()
			s.memory.rings = append(s.memory.rings, again...)
			s.mu.Unlock()
		}
		err := s.pump.wait(arrivals, time.Duration(next-s.now()))
		s.mu.Lock()
		s.planned = 0
		s.mu.Unlock()
		if err != nil {
			s.end(err)
			return
		}
	}
}

// plan wakes the pump if it sleeps for longer than e (if it is not nil), or an end that was polled since
// its last step, may wait, or if it does not wait for arrivals and a goroutine does.
func (s *stack) plan(e *end) {
	if s.planned == 0 {
		return // it does not sleep, and looks before it does
	}
	due := s.h.due
	if e != nil {
		due = min(due, e.deadline())
	}
	if s.parked > 0 && !s.arrivals || due < s.planned || len(s.memory.stale) > 0 {
		s.planned = 0
		s.pump.wake()
	}
}

// step does everything that is due. It returns when something is due next.
func (s *stack) step() (next int64) {
	s.mail()
	now := s.now()
	next = now + int64(time.Hour)
	for _, e := range s.h.ends {
		if s.h.visit(now, e) {
			connOf(e).signal()
		}
		next = min(next, e.deadline())
	}
	next = min(next, s.h.watch(now))
	s.h.due = never
	return next
}

// mailAtOnce bounds the messages of a kind that are taken before anything else is done. Defined
// by this project.
const mailAtOnce = 256

// mail takes the messages that have arrived.
func (s *stack) mail() {
	for _, k := range []mailbox.Kind{mailbox.KindConnection, mailbox.KindStream} {
		for range mailAtOnce {
			m, ok := s.ep.Take(k)
			if !ok {
				break
			}
			s.message(k, &m)
		}
	}
}

func (s *stack) message(k mailbox.Kind, m *rdma.Message) {
	now, from := s.now(), source{m.Node, m.Interface, m.PDID}
	switch {
	case m.Refused != 0:
		t := s.sentAs(k, m.Refused)
		e := s.h.ends[t.id]
		if t.number != m.Refused || e == nil || e.peer.node != m.Node {
			return // any node can send a refusal
		}
		if k == mailbox.KindStream {
			e.shortRefused(now, t.n)
		} else if e.dialing() {
			e.askRefused(now)
		}
		s.h.poll(now, e)
		connOf(e).signal()
	case k == mailbox.KindStream:
		if e := s.h.short(now, from, m.Words[:m.N]); e != nil {
			connOf(e).signal()
		}
	default:
		s.h.connection(now, from, m.Words[:m.N]) // step signals
	}
}

func (s *stack) sentAs(k mailbox.Kind, number uint32) *sentMessage {
	of := &s.sent[k-mailbox.KindStream]
	return &of[number%uint32(len(of))]
}

// end resets all connections: the attachment has ended.
func (s *stack) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	for _, e := range s.h.ends {
		e.gone(s.now(), fmt.Errorf("%w: %w", syscall.ECONNRESET, err))
		s.h.poll(s.now(), e)
		connOf(e).signal()
	}
	for _, l := range s.listeners {
		l.w.signal(s)
	}
	s.release()
}

// release frees the memory when the attachment has ended and no connection uses it any more.
func (s *stack) release() {
	if s.err != nil && s.memory.lent == 0 {
		s.memory.free()
	}
}

// remote names the process of a peer.
func remote(p peer, va device.VA, size uint64) rdma.Remote {
	return rdma.Remote{Node: p.node, PDID: p.pdid, Generation: p.generation, Interface: p.iface, VA: va, Len: size}
}

func (s *stack) post(e *end, m *message) bool {
	m.generation = s.h.generation
	words := m.encode()
	number, err := s.ep.Post(remote(e.peer, 0, 1), words[:]...)
	if err != nil {
		return false
	}
	*s.sentAs(mailbox.KindConnection, number) = sentMessage{number: number, id: e.id}
	return true
}

func (s *stack) short(e *end, n uint64, words []uint64) bool {
	number, err := s.ep.Post(remote(e.peer, 0, 1), words...)
	if err != nil {
		return false
	}
	*s.sentAs(mailbox.KindStream, number) = sentMessage{number: number, id: e.id, n: n}
	return true
}

func (s *stack) write(e *end, n, offset uint64, size uint32, first, last uint64) bool {
	c := connOf(e)
	w := rdma.WriteRequest{Notify: &rdma.Notification{VA: e.remote.words + device.VA(n%slots*slotBytes), First: first, Last: last}}
	if size == 0 {
		w.Src, w.Dst = c.area.ownBeat(), remote(e.peer, e.remote.words+beatAt, 8)
	} else {
		w.Src = e.copy[offset%uint64(len(e.copy)):][:size]
		w.Dst, w.Offset = remote(e.peer, e.remote.ring, uint64(e.remote.size)), offset%uint64(e.remote.size)
	}
	return s.start(&w, &c.writes[n%slots])
}

func (s *stack) credit(e *end, first, last uint64) bool {
	c := connOf(e)
	return s.start(&rdma.WriteRequest{
		Src: c.area.ownBeat(), Dst: remote(e.peer, e.remote.words+beatAt, 8), Urgent: true,
		Notify: &rdma.Notification{VA: e.remote.words + creditAt, First: first, Last: last},
	}, &c.credit)
}

// flight is a write in flight, or one that could not begin.
type flight struct {
	t   *rdma.Transfer
	err error
}

// start begins a write; false: all channels are taken.
func (s *stack) start(w *rdma.WriteRequest, f *flight) bool {
	t, err := s.ep.Write(context.Background(), *w)
	if errors.Is(err, rdma.ErrBusy) {
		return false
	}
	*f = flight{t, err}
	return true
}

func (s *stack) landed(e *end, n uint64) (bool, error) { return connOf(e).writes[n%slots].landed() }
func (s *stack) credited(e *end) (bool, error)         { return connOf(e).credit.landed() }

func (f *flight) landed() (bool, error) {
	if f.t != nil {
		if !f.t.Poll().Final() {
			return false, nil
		}
		f.err = f.t.Err()
	}
	err := f.err
	if errors.Is(err, rdma.ErrDomain) {
		err = fmt.Errorf("%w: %w", errEnded, err)
	}
	*f = flight{}
	return true, err
}

func (s *stack) slot(e *end, i int) (first, last uint64) { return connOf(e).area.pair(i * slotBytes) }

func (s *stack) credits(e *end) (first, last, beat uint64) {
	a := &connOf(e).area
	first, last = a.pair(creditAt)
	return first, last, a.word(beatAt)
}

func (s *stack) abort(e *end) {
	c := connOf(e)
	for i := range c.writes {
		c.writes[i].abort()
	}
	c.credit.abort()
}

func (f *flight) abort() {
	if f.t != nil {
		_ = f.t.Abort() // fails if the attachment has ended, and every transfer with it
	}
}

func (s *stack) equip(e *end) error {
	a, err := s.memory.get()
	if err != nil {
		return err
	}
	c := &Conn{s: s, e: e, area: a}
	c.init()
	e.mem, e.copy, e.r.ring = c, a.copy(), a.ring()
	e.self = remoteEnd{ring: rdma.VAOf(a.ring()), size: ringSize, words: rdma.VAOf(a.words)}
	return nil
}

func (s *stack) put(e *end, retired bool) {
	c := connOf(e)
	c.over, c.retired = true, retired
	c.leave(0)
}

func (s *stack) arrived(port uint32, e *end) {
	if l := s.listeners[port]; l != nil {
		l.queue = append(l.queue, connOf(e))
		l.w.signal(s)
	}
}

func connOf(e *end) *Conn { return e.mem.(*Conn) }
