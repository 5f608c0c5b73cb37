package stream

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/rdma"
)

// idlePair is an open connection of two hosts, without programs.
func idlePair(t *testing.T) (w *world, a, b *end) {
	t.Helper()
	w = newWorld(t, 3)
	w.hosts[1].h.backlog[80] = 0
	a, err := w.hosts[0].h.dial(0, 1, 17, 80)
	if err != nil {
		t.Fatal(err)
	}
	w.hosts[0].step()
	w.until(func() bool { return len(w.hosts[1].queue) > 0 && !a.dialing() })
	return w, a, w.hosts[1].queue[0]
}

// until lets time pass until over returns true; it returns how long that was.
func (w *world) until(over func() bool) time.Duration {
	began := w.now
	for !over() && len(w.queue) > 0 && w.bad == "" {
		w.next()
	}
	if !over() {
		w.t.Fatalf("nothing happens any more at %v: %s", time.Duration(w.now), w.bad)
	}
	return time.Duration(w.now - began)
}

// pass lets a time pass.
func (w *world) pass(d time.Duration) {
	over := false
	w.after(int64(d), func() { over = true })
	w.until(func() bool { return over })
}

// A connection that is idle for long stays.
func TestIdle(t *testing.T) {
	w, a, b := idlePair(t)
	w.until(func() bool { return w.now > int64(10*time.Minute) })
	if a.err != nil || b.err != nil {
		t.Errorf("%v, %v", a.err, b.err)
	}
}

// A peer that is stopped is given up after 60 s, one that has ended within some seconds.
func TestPeersThatAreGone(t *testing.T) {
	w, a, _ := idlePair(t)
	w.hosts[1].stopped = true
	if d := w.until(func() bool { return a.err != nil }); d < 55*time.Second || d > 65*time.Second || !errors.Is(a.err, syscall.ECONNRESET) {
		t.Errorf("stopped: after %v: %v", d, a.err)
	}
	a.close(w.now)
	w.hosts[0].step()
	w.until(func() bool { return len(w.hosts[0].h.ends) == 0 })
	if w.hosts[0].lost != 1 {
		t.Error("memory into which the peer may still write was given back")
	}

	w, a, _ = idlePair(t)
	second, err := w.hosts[0].h.dial(w.now, 1, 17, 80)
	if err != nil {
		t.Fatal(err)
	}
	w.until(func() bool { return !second.dialing() })
	w.hosts[1].stopped, w.hosts[1].ended = true, true
	if d := w.until(func() bool { return a.err != nil && second.err != nil }); d > 3*time.Second || !errors.Is(a.err, errEnded) || !errors.Is(second.err, syscall.ECONNRESET) {
		t.Errorf("ended: after %v: %v, %v", d, a.err, second.err)
	}
}

// A process may end after Close: all that it sent is read, even if its end is noticed first.
func TestPeerEndsAfterClose(t *testing.T) {
	w, a, b := idlePair(t)
	w.hosts[0].stopped = true
	b.send(w.now, 1000)
	b.close(w.now)
	w.until(b.flushed)
	w.hosts[1].stopped, w.hosts[1].ended = true, true
	a.send(w.now, 1000)
	w.until(func() bool { return !simOf(a).writes[0].flying })
	w.hosts[0].stopped = false
	w.hosts[0].step()
	if n := len(a.r.available()); a.err == nil || n != 1000 || !a.r.fin {
		t.Errorf("%d bytes of 1000, the end of the stream: %v, %v", n, a.r.fin, a.err)
	}
}

// While pfd, or both processes, are stopped no peer shows a sign of life, and none is taken for stopped:
// the connections go on.
func TestStoppedTogether(t *testing.T) {
	for name, stop := range map[string]func(*world, bool){
		"pfd": func(w *world, stopped bool) {
			w.frozen = stopped
			for _, f := range w.held {
				f()
			}
			w.held = nil
		},
		"the processes": func(w *world, stopped bool) {
			for _, s := range w.hosts {
				s.stopped = stopped
			}
		},
	} {
		w, a, b := idlePair(t)
		for range 100 { // each could write one beat before pfd goes on
			if _, err := w.hosts[0].h.dial(w.now, 1, 17, 80); err != nil {
				t.Fatal(err)
			}
		}
		w.hosts[0].step()
		w.until(func() bool { return len(w.hosts[1].queue) == 101 })
		w.pass(2 * time.Second)
		for range 2 {
			stop(w, true)
			w.pass(70 * time.Second)
			stop(w, false)
			for _, s := range w.hosts {
				s.step()
			}
			w.pass(5 * time.Second)
		}
		if n := len(w.hosts[0].h.ends); a.err != nil || b.err != nil || n != 101 || w.bad != "" {
			t.Errorf("%s: %v, %v; %d of 101 connections; %s", name, a.err, b.err, n, w.bad)
		}
	}
}

// A process that admits this one sends shutdowns of ends that never were: only some are remembered.
func TestFloodOfShutdowns(t *testing.T) {
	w, a, b := idlePair(t)
	for i := range uint32(100_000) {
		m := (&message{op: opShutdown, from: 1000 + i, generation: 7}).encode()
		w.hosts[1].h.connection(w.now, source{0, 16, 5}, m[:])
	}
	if n := len(w.hosts[1].h.buried); n > 10_000 {
		t.Errorf("%d ends are remembered", n)
	}
	w.pass(time.Minute)
	if a.err != nil || b.err != nil || len(w.hosts[1].h.buried) > 0 {
		t.Errorf("%v, %v; %d ends are remembered for ever", a.err, b.err, len(w.hosts[1].h.buried))
	}
}

// A dial that nobody answers fails after 5 s, and one that each node refuses earlier.
func TestDialTimes(t *testing.T) {
	w := newWorld(t, 4)
	w.hosts[1].stopped = true
	a, err := w.hosts[0].h.dial(0, 1, 17, 80)
	if err != nil {
		t.Fatal(err)
	}
	w.hosts[0].step()
	if d := w.until(func() bool { return a.err != nil }); d < 5*time.Second || d > 6*time.Second || !errors.Is(a.err, syscall.ETIMEDOUT) {
		t.Errorf("no answer: after %v: %v", d, a.err)
	}
	if a, err = w.hosts[0].h.dial(w.now, 1, 17, 80); err != nil {
		t.Fatal(err)
	}
	w.hosts[0].step()
	began := w.now
	for a.err == nil && a.refusals < 1000 {
		for a.refusals < a.asks {
			a.askRefused(w.now)
		}
		w.next()
	}
	if d := time.Duration(w.now - began); d > time.Second || !errors.Is(a.err, syscall.ECONNREFUSED) {
		t.Errorf("refused: after %v: %v", d, a.err)
	}
	a.close(w.now)
	w.hosts[0].step()
	if w.hosts[0].put0 != 1 || w.hosts[0].lost != 0 {
		t.Error("the memory of a refused dial is not used again")
	}
}

// Any node can send a refusal, so only those of the node to which a message went count.
func TestForgedRefusal(t *testing.T) {
	w := newWorld(t, 4)
	a, err := w.hosts[0].h.dial(0, 1, 17, 80)
	if err != nil {
		t.Fatal(err)
	}
	s := &stack{h: w.hosts[0].h, began: time.Now()}
	*s.sentAs(mailbox.KindConnection, 7) = sentMessage{number: 7, id: a.id}
	s.message(mailbox.KindConnection, &rdma.Message{Node: 2, Refused: 7})
	if a.refusals != 0 {
		t.Error("a refusal of another node counts")
	}
}

// A dial goes on after pfd, or both processes, were stopped for longer than it waits for an answer.
func TestDialStopped(t *testing.T) {
	for name, stop := range map[string]func(*world, bool){
		"pfd":           func(w *world, stopped bool) { w.mute = stopped },
		"the processes": func(w *world, stopped bool) { w.hosts[0].stopped, w.hosts[1].stopped = stopped, stopped },
	} {
		w, _, b := idlePair(t)
		stop(w, true)
		a, err := w.hosts[0].h.dial(w.now, 1, 17, 80)
		if err != nil {
			t.Fatal(err)
		}
		w.hosts[0].step()
		w.pass(6 * time.Second)
		stop(w, false)
		for _, s := range w.hosts {
			s.step()
		}
		w.until(func() bool { return !a.dialing() || a.err != nil })
		if a.err != nil || b.err != nil {
			t.Errorf("%s: %v, %v", name, a.err, b.err)
		}
	}
}

// The rules by which bytes and slots are used again.
func TestSenderRoom(t *testing.T) {
	full := func() *sender {
		s := &sender{window: minRing, keeps: minRing}
		for range 4 {
			s.append(0, minRing/4, 0)
		}
		for n := range s.next {
			s.spans[n].flying, s.spans[n].due = true, never
		}
		return s
	}
	landed := func(upTo uint64) func(uint64) (bool, error) {
		return func(n uint64) (bool, error) { return n < upTo, nil }
	}
	for name, c := range map[string]struct {
		landed uint64
		credit credit
		want   int
	}{
		"nothing":                             {0, credit{}, 0},
		"landed, not consumed":                {4, credit{}, 0},
		"consumed, in flight":                 {0, credit{bytes: minRing / 4, spans: 1}, 0},
		"consumed and landed":                 {1, credit{bytes: minRing / 4, spans: 1}, minRing / 4},
		"the second landed before the first":  {0, credit{bytes: minRing / 2, spans: 2}, 0},
		"a part consumed, landed":             {1, credit{bytes: minRing / 8}, minRing / 8},
		"a part consumed, in flight":          {0, credit{bytes: minRing / 8}, 0},
		"too little for a span of many bytes": {1, credit{bytes: minRing / 16}, 0},
		"the bytes' word before the spans'":   {1, credit{bytes: minRing / 2}, minRing / 4},
	} {
		s := full()
		if !s.credited(c.credit) {
			t.Fatal(name)
		}
		s.settle(landed(c.landed))
		if got := s.room(minRing); got != c.want {
			t.Errorf("%s: room for %d, want %d", name, got, c.want)
		}
	}
	// A copy smaller than the ring is used again when its writes have ended; a span that went by a
	// message stays until a credit covers it.
	small := full()
	small.window = 4 * minRing
	if n := small.room(minRing); n != 0 {
		t.Errorf("nothing of the copy is free, room for %d", n)
	}
	small.settle(landed(2))
	if n := small.room(minRing); n != minRing/4 {
		t.Errorf("half of the copy is free, room for %d", n)
	}
	small.settle(landed(4))
	small.spans[0].due = 1
	if n := small.room(minRing); n != 0 {
		t.Errorf("the first span is not in the ring, room for %d", n)
	}
	small.credited(credit{bytes: minRing / 4, spans: 1})
	if n := small.room(minRing); n != minRing/4 {
		t.Errorf("a credit covers the first span, room for %d", n)
	}
	for name, c := range map[string]credit{
		"more bytes than were sent": {bytes: minRing + 1}, "more spans": {spans: 5}, "no bytes could be so many": {bytes: 1 << 63},
	} {
		if full().credited(c) {
			t.Errorf("%s: it is taken", name)
		}
	}
	s := full()
	if !s.credited(credit{bytes: 5, reset: true}) || s.room(1) != 0 || s.credited(credit{bytes: 4, reset: true}) || s.credited(credit{bytes: 5}) {
		t.Error("a credit goes back")
	}
	s = &sender{window: minRing, keeps: minRing}
	for s.room(1) > 0 {
		s.append(0, 1, 0)
	}
	if s.next != slots-1 {
		t.Errorf("%d spans of one byte, want %d: one is left to the end of the stream", s.next, slots-1)
	}
}

// A receiver takes what is in order and possible, and nothing else.
func TestReceiverTakes(t *testing.T) {
	for name, c := range map[string]struct {
		s    slot
		ok   bool
		fail bool
	}{
		"empty":                   {slot{}, false, false},
		"the next":                {slot{number: 1, length: 5}, true, false},
		"the end":                 {slot{number: 1, flags: spanFIN}, true, false},
		"number of another slot":  {slot{number: 2, length: 5}, false, true},
		"number ahead by a round": {slot{number: 65, length: 5}, false, true},
		"number behind":           {slot{number: 1<<24 - 63, length: 5}, false, false},
		"no bytes":                {slot{number: 1}, false, true},
		"an end with bytes":       {slot{number: 1, length: 5, flags: spanFIN}, false, true},
		"flags of TCP":            {slot{number: 1, length: 5, flags: 2}, false, true},
		"another offset":          {slot{number: 1, length: 5, offset: 1}, false, true},
		"longer than the ring":    {slot{number: 1, length: minRing + 1}, false, true},
		"all of the ring":         {slot{number: 1, length: minRing}, true, false},
	} {
		r := receiver{ring: make([]byte, minRing)}
		if ok, err := r.take(c.s.encode()); ok != c.ok || (err != nil) != c.fail {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
	r := receiver{ring: make([]byte, minRing)}
	for i := range uint32(2) {
		if _, err := r.take(slot{number: i + 1, length: minRing / 2, offset: uint64(i) * minRing / 2}.encode()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.take(slot{number: 3, length: 1, offset: minRing}.encode()); err == nil {
		t.Error("a span for which there is no room is taken")
	}
	r = receiver{ring: make([]byte, minRing)}
	if err := r.message(&short{number: slots, length: 1}); err == nil {
		t.Error("a message beyond the slots is taken")
	}
}
