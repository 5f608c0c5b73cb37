package link

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exanet/pfd/device"
)

// tap is a connection that remembers what was written, and can stop to carry anything.
type tap struct {
	net.Conn
	written []byte
}

func (c *tap) Write(b []byte) (int, error) {
	c.written = append(c.written, b...)
	return c.Conn.Write(b)
}

// cable carries bytes between two ends, as TCP does: it buffers, and keeps what was sent while it is
// cut.
type cable struct {
	mu   sync.Mutex
	cond sync.Cond
	cut  bool
	all  []*end

	refuse func(from, to string) string // why a host cannot dial another one, "" if it can
}

func newCable() *cable {
	c := new(cable)
	c.cond.L = &c.mu
	return c
}

func (c *cable) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	c.cond.Broadcast()
}

// end is one end of a connection over a cable.
type end struct {
	net.Conn // nil
	c        *cable
	peer     *end
	in       bytes.Buffer
	closed   bool
	deadline time.Time
	timer    *time.Timer
}

func (c *cable) pair() (net.Conn, net.Conn) {
	a, b := &end{c: c}, &end{c: c}
	a.peer, b.peer = b, a
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, a, b)
	return a, b
}

func (e *end) Read(p []byte) (int, error) {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	for {
		switch {
		case e.closed:
			return 0, net.ErrClosed
		case !e.deadline.IsZero() && !time.Now().Before(e.deadline):
			return 0, os.ErrDeadlineExceeded
		case e.in.Len() > 0 && !e.c.cut:
			return e.in.Read(p)
		case e.peer.closed && !e.c.cut:
			return 0, io.EOF
		}
		e.c.cond.Wait()
	}
}

func (e *end) Write(p []byte) (int, error) {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	if e.closed || e.peer.closed && !e.c.cut {
		return 0, net.ErrClosed
	}
	e.peer.in.Write(p)
	e.c.cond.Broadcast()
	return len(p), nil
}

func (e *end) Close() error {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.closed = true
	e.c.cond.Broadcast()
	return nil
}

func (e *end) SetDeadline(t time.Time) error {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	if e.timer != nil {
		e.timer.Stop()
	}
	if e.deadline = t; !t.IsZero() {
		e.timer = time.AfterFunc(time.Until(t), func() {
			e.c.mu.Lock()
			defer e.c.mu.Unlock()
			e.c.cond.Broadcast()
		})
	}
	return nil
}
func (e *end) SetReadDeadline(t time.Time) error { return e.SetDeadline(t) }
func (e *end) RemoteAddr() net.Addr              { return &net.UnixAddr{} }

// cabled is a rig of two hosts on a cable, with the standard times and a clock of the test.
func cabled(t *testing.T, f func(r *rig, c *cable, a, b *host)) { cabledFor(t, 0, f) }

// cabledFor is cabled with Timing.Idle, and then without TLS: many links come up soon.
func cabledFor(t *testing.T, idle time.Duration, f func(r *rig, c *cable, a, b *host)) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, idle == 0)
		r.standard, r.idle = true, idle
		c := newCable()
		r.dial = func(w Want, from *host) bool {
			c.mu.Lock()
			cut, text := c.cut, ""
			if c.refuse != nil {
				text = c.refuse(from.name, w.Host)
			}
			c.mu.Unlock()
			to := r.host(w.Host)
			if text != "" {
				from.Failed(w.Host, w.UDP, text)
				return true
			}
			if cut || to == nil || to.ctx.Err() != nil {
				from.Failed(w.Host, w.UDP, "no route to host")
				return true
			}
			x, y := c.pair()
			from.Take(x, w.Host)
			to.Take(y, "")
			return true
		}
		a := r.start(0, r.tableOf(0), nil)
		b := r.start(1, r.tableOf(1), nil)
		a.awaitReady(t, true)
		b.awaitReady(t, true)
		f(r, c, a, b)
		a.stop()
		b.stop()
	})
}

// A cable that is cut for a second: the link is not ready after 450 to 750 ms, and is ready as soon
// as the cable is back. The connections and all frames survive.
func TestCableCutForASecond(t *testing.T) {
	cabled(t, func(r *rig, c *cable, a, b *host) {
		for n := range 10 {
			time.Sleep(time.Duration(n) * 77 * time.Millisecond)
			c.set(true)
			began := time.Now()
			for i := range 5 {
				a.Send(block(0, 2, 500, byte(5*n+i)))
			}
			a.awaitReady(t, false)
			if d := time.Since(began); d < 300*time.Millisecond || d > 760*time.Millisecond {
				t.Errorf("not ready after %v", d)
			}
			time.Sleep(time.Until(began.Add(time.Second)))
			c.set(false)
			a.awaitReady(t, true)
			if d := time.Since(began); d != time.Second {
				t.Errorf("ready after %v", d)
			}
			for i := range 5 {
				if g := b.await(t, "frame", isFrame); !same(g.frame, block(0, 2, 500, byte(5*n+i))) {
					t.Errorf("%+v", g.frame)
				}
			}
		}
		if i := a.Info()[0]; i.Connects != 1 {
			t.Errorf("%+v", i)
		}
	})
}

// A cable that is cut silently for a minute: both sides end the link after 3 s, the state becomes
// unreachable after 5 s more, and the link comes back after the cable.
func TestCableCutForAMinute(t *testing.T) {
	cabled(t, func(r *rig, c *cable, a, b *host) {
		time.Sleep(10 * time.Second)
		if i := a.Info()[0]; i.Connects != 1 || i.State != Up {
			t.Fatalf("an idle link: %+v", i)
		}
		c.set(true)
		began := time.Now()
		for _, h := range []*host{a, b} {
			h.await(t, "end", func(g got) bool { return g.changed != nil && !*g.changed })
			if d := time.Since(began); d < 2*time.Second || d > 4*time.Second {
				t.Errorf("host %s: ended after %v", h.name, d)
			}
		}
		a.Send(block(0, 2, 500, 1)) // dropped
		time.Sleep(6 * time.Second)
		for _, h := range []*host{a, b} {
			if i := h.Info()[0]; i.State != Unreachable || i.LastError == "" {
				t.Errorf("host %s: %+v", h.name, i)
			}
		}
		time.Sleep(time.Minute)
		began = time.Now()
		c.set(false)
		a.awaitReady(t, true)
		b.awaitReady(t, true)
		if d := time.Since(began); d > 6*time.Second {
			t.Errorf("back after %v", d)
		}
		a.Send(block(0, 2, 500, 2))
		if g := b.await(t, "frame", isFrame); g.frame.ID != 2 {
			t.Errorf("%+v", g.frame)
		}
	})
}

// A half-open link: the dialing host has forgotten it and dials a new one, which replaces it at once.
func TestHalfOpen(t *testing.T) {
	r := newRig(t, 2, true)
	b := r.start(1, r.tableOf(1), nil)
	r.link(b, 0, 1)
	b.awaitReady(t, true)
	r.link(b, 0, 2)
	b.awaitReady(t, false)
	b.awaitReady(t, true)
	// One connection of a third link makes no link, but the second one is of the past.
	c := r.link(b, 0, 3)[classBulk]
	b.awaitReady(t, false)
	b.awaitReady(t, true)
	c.close()
	b.awaitReady(t, false)
}

// The clock of the host that dials is set back by an hour while its pfd does not run: the numbers of its
// links are less than those of its former life, and they come up all the same.
func TestClockSetBack(t *testing.T) {
	cabled(t, func(r *rig, c *cable, a, b *host) {
		p := a.peers["b"]
		p.mu.Lock()
		p.number += uint64(time.Hour)
		p.mu.Unlock()
		if err := a.Cut("b", time.Millisecond); err != nil {
			t.Fatal(err)
		}
		for _, h := range []*host{a, b} {
			h.awaitReady(t, false)
			h.awaitReady(t, true)
		}
		c.set(true) // b does not see the end of the former life
		a.stop()
		a = r.start(0, r.tableOf(0), nil)
		defer a.stop()
		c.set(false)
		began := time.Now()
		b.awaitReady(t, false)
		b.awaitReady(t, true)
		a.awaitReady(t, true)
		if d := time.Since(began); d > 6*time.Second {
			t.Errorf("back after %v", d)
		}
		a.Send(block(0, 2, 500, 2))
		if g := b.await(t, "frame", isFrame); g.frame.ID != 2 {
			t.Errorf("%+v", g.frame)
		}
	})
}

// Cut ends the link on both sides at once, whichever side is told, and it is back when the cut ends.
func TestCut(t *testing.T) {
	r := newRig(t, 2, true)
	a, b := r.two()
	for n := range 20 {
		h, other := a, b
		if n%2 == 1 {
			h, other = b, a
		}
		began := time.Now()
		if err := h.Cut(other.name, 30*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		h.awaitReady(t, false)
		other.awaitReady(t, false)
		if n == 0 {
			h.awaitInfo(t, other.name, "cut", func(i Info) bool { return i.State == CutOff || time.Since(began) > 30*time.Millisecond })
		}
		h.awaitReady(t, true)
		other.awaitReady(t, true)
		if d := time.Since(began); d < 30*time.Millisecond {
			t.Errorf("back after %v", d)
		}
		a.Send(block(0, 2, 3000, byte(n)))
		if g := b.await(t, "frame", isFrame); g.frame.ID != device.TransactionID(n) {
			t.Errorf("%+v", g.frame)
		}
	}
	if err := a.Cut("z", 0); err == nil {
		t.Error("an unknown host can be cut")
	}
}

// Messages of a pfd arrive in order, between the changes that say when the link was up.
func TestTell(t *testing.T) {
	r := newRig(t, 2, true)
	a, b := r.two()
	isTold := func(g got) bool { return g.changed != nil || g.told != "" }
	if err := a.Tell("b", make([]byte, MaxTell+1)); err == nil {
		t.Error("a long message is taken")
	}
	if err := a.Tell("z", nil); err == nil {
		t.Error("a message to an unknown host is taken")
	}
	const rounds, count = 3, 200
	for n := range rounds {
		for i := range count {
			if err := a.Tell("b", fmt.Appendf(nil, "%d-%d", n, i)); err != nil {
				t.Fatal(err)
			}
		}
		if n == 0 {
			b.await(t, "up", func(g got) bool { return g.changed != nil && *g.changed })
		}
		for i := range count {
			if g := b.await(t, "message", isTold); g.told != fmt.Sprintf("a:%d-%d", n, i) {
				t.Fatalf("%+v", g)
			}
		}
		a.await(t, "up", func(g got) bool { return g.changed != nil && *g.changed })
		if err := b.Cut("a", time.Millisecond); err != nil {
			t.Fatal(err)
		}
		for _, up := range []bool{false, true} {
			if g := b.await(t, "change", isTold); g.changed == nil || *g.changed != up {
				t.Fatalf("%+v", g)
			}
		}
		a.await(t, "down", func(g got) bool { return g.changed != nil && !*g.changed })
		a.awaitReady(t, true)
	}
}

// A host that a table no longer has is gone; one that comes back, perhaps with other nodes, is a
// new one.
func TestGone(t *testing.T) {
	r := newRig(t, 3, true)
	a, b := r.two()
	if err := b.Drain("a", true); err != nil {
		t.Fatal(err)
	}
	b.await(t, "drain", func(g got) bool { return g.drain != nil && *g.drain })
	table := r.tableOf(1)
	table.Hosts = table.Hosts[1:]
	if err := b.SetTable(table); err != nil {
		t.Fatal(err)
	}
	b.await(t, "end of draining", func(g got) bool { return g.drain != nil && !*g.drain })
	b.await(t, "gone", func(g got) bool { return g.gone && g.first == 0 })
	a.awaitReady(t, false)
	if i := b.Info()[0]; i.Host != "a" || i.State != Gone || !b.Reaches(1) {
		t.Errorf("%+v", i)
	}
	a.awaitInfo(t, "b", "refusal", func(i Info) bool { return contains(i.LastError, []string{"not in the table of host b"}) })
	if err := b.SetTable(table); err != nil {
		t.Fatal(err)
	}
	if b.Reaches(1) || len(b.Info()) != 1 {
		t.Errorf("%+v", b.Info())
	}
	if err := b.SetTable(r.tableOf(1)); err != nil {
		t.Fatal(err)
	}
	b.awaitReady(t, true)
	a.awaitReady(t, true)
}

// A host that drains is drained when its last transfer has ended.
func TestDrain(t *testing.T) {
	r := newRig(t, 2, false)
	a, _ := r.two()
	a.mu.Lock()
	a.underway = 1
	a.mu.Unlock()
	if err := a.Drain("b", true); err != nil {
		t.Fatal(err)
	}
	a.awaitInfo(t, "b", "draining", func(i Info) bool { return i.State == Draining })
	a.mu.Lock()
	a.underway = 0
	a.mu.Unlock()
	a.awaitInfo(t, "b", "drained", func(i Info) bool { return i.State == Drained && i.Draining && i.Connected })
	if err := a.Drain("b", false); err != nil {
		t.Fatal(err)
	}
	a.awaitInfo(t, "b", "up", func(i Info) bool { return i.State == Up })
}
