package link

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exanet/pfd/device"
)

// ends returns how many ends of connections are open on the cable.
func (c *cable) ends() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, e := range c.all {
		if !e.closed {
			n++
		}
	}
	return n
}

// refuses lets f say why a host cannot dial another one, "" if it can.
func (c *cable) refuses(f func(from, to string) string) {
	c.mu.Lock()
	c.refuse = f
	c.mu.Unlock()
}

// awaitState waits until the only link of hosts is in a state. It looks rarely: the race detector does not bear
// more than some 60,000 timers of one clock.
func awaitState(t *testing.T, want State, hosts ...*host) {
	t.Helper()
	for _, h := range hosts {
		for n := 0; h.Info()[0].State != want; n++ {
			if n > 900 {
				t.Fatalf("host %s is not %s: %+v", h.name, want, h.Info())
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// remaining returns the events that nobody has awaited yet, and drops them.
func (h *host) remaining() []got {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.events
	h.events = nil
	return list
}

// A link that nothing uses is closed after a minute and not before. The sink does not notice it, and the first
// frame or message of either side brings it up.
func TestIdle(t *testing.T) {
	cabled(t, func(r *rig, c *cable, a, b *host) {
		wakes := []func(byte){
			func(n byte) { a.Send(block(0, 2, 500, n)) },
			func(n byte) { b.Send(block(2, 0, 500, n)) },
			func(n byte) { _ = a.Tell("b", []byte{n}) },
			func(n byte) { _ = b.Tell("a", []byte{n}) },
		}
		for n := range byte(12) {
			time.Sleep(59 * time.Second)
			if s := a.Info()[0].State; s != Up || c.ends() != 4 {
				t.Fatalf("%s after 59 s", s)
			}
			awaitState(t, Idle, a, b)
			if c.ends() != 0 {
				t.Fatalf("%d ends of connections are open", c.ends())
			}
			a.remaining()
			b.remaining()
			began := time.Now()
			wakes[n%4](n)
			to := []*host{b, a}[n%2]
			g := to.await(t, "what has brought the link up", func(g got) bool { return g.frame != nil || g.told != "" && g.changed == nil })
			if d := time.Since(began); d > 100*time.Millisecond || g.frame != nil && g.frame.ID != device.TransactionID(n) {
				t.Fatalf("%+v after %v", g, d)
			}
			for _, g := range append(a.remaining(), b.remaining()...) {
				if g.ready != nil {
					t.Errorf("wake %d: LinkReady(%v)", n, *g.ready)
				}
			}
		}
		if i := a.Info()[0]; i.Connects != 13 || i.Dropped != 0 {
			t.Errorf("%+v", i)
		}
	})
}

// A link stays up if an exanet-hostd is missing, or if the side that does not dial cannot knock. That side names
// the cause.
func TestIdleNeedsKnock(t *testing.T) {
	cabled(t, func(r *rig, c *cable, a, b *host) {
		for _, away := range []string{"a", "b", "to a"} {
			c.refuses(func(from, to string) string {
				if from == away || to == away || "to "+to == away {
					return "nothing there: " + away
				}
				return ""
			})
			for range 30 {
				time.Sleep(10 * time.Second)
				if x, y := a.Info()[0], b.Info()[0]; x.State != Up || y.State != Up {
					t.Fatalf("%s: %+v, %+v", away, x, y)
				}
			}
			if i := b.Info()[0]; !contains(i.LastError, []string{"unused, but the link stays up", ": " + away}) {
				t.Errorf("%s: %+v", away, i)
			}
			// That a knock succeeded once says nothing later.
			knock := make(chan struct{}, 1)
			c.refuses(func(from, to string) string {
				select {
				case knock <- struct{}{}:
				default:
				}
				return ""
			})
			<-knock
			time.Sleep(50 * time.Millisecond)
			a.Send(block(0, 2, 500, 1))
			c.refuses(func(from, to string) string { return "nothing there any more" })
			time.Sleep(3 * time.Minute)
			if x, y := a.Info()[0], b.Info()[0]; x.State != Up || y.State != Up {
				t.Fatalf("%s: %+v, %+v", away, x, y)
			}
			c.refuses(nil)
			awaitState(t, Idle, a, b)
			a.Send(block(0, 2, 500, 1))
			awaitState(t, Up, a, b)
		}
	})
}

// A link that is idle is tried every ten minutes: a host that has ended meanwhile is found to be unreachable, and
// one that cannot knock any more gets its link.
func TestIdleIsTried(t *testing.T) {
	cabled(t, func(r *rig, c *cable, a, b *host) {
		awaitState(t, Idle, a, b)
		b.remaining()
		c.refuses(func(from, to string) string {
			if to == "a" {
				return "i/o timeout"
			}
			return ""
		})
		b.Send(block(2, 0, 500, 1))
		b.awaitReady(t, false)
		awaitState(t, Unreachable, b)
		if i := b.Info()[0]; i.QueuedHigh+i.QueuedBulk != 0 || i.FramesSent != 0 || i.Dropped != 1 || i.LastError != "i/o timeout" {
			t.Errorf("%+v", i)
		}
		time.Sleep(10 * time.Minute)
		awaitState(t, Up, a, b)
		b.awaitReady(t, true)
		c.refuses(nil)
		awaitState(t, Idle, a, b)
		if x, y := a.Info()[0], b.Info()[0]; x.BytesSent != y.BytesReceived || y.BytesSent != x.BytesReceived || x.QueuedBulk+y.QueuedBulk != 0 {
			t.Errorf("%+v\n%+v", x, y)
		}
		b.stop()
		time.Sleep(10 * time.Minute)
		awaitState(t, Unreachable, a)
	})
}

// A host of a table that comes when Links have ended does not hold anybody up.
func TestIdleAndStopped(t *testing.T) {
	r := newRig(t, 3, false)
	all := r.tableOf(0)
	few := all
	few.Hosts = all.Hosts[:2]
	a := r.start(0, few, nil)
	a.stop()
	for _, table := range []Table{all, few, all} {
		if err := a.SetTable(table); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Cut("c", time.Second); !errors.Is(err, ErrHost) {
		t.Error(err)
	}
}

// A host that says idle at once, again and again, is not dialed without pauses.
func TestIdleAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, false)
		r.standard, r.pipe = true, true
		var links atomic.Int32
		r.dial = func(w Want, from *host) bool {
			x, y := r.pair()
			from.Take(x, w.Host)
			go func() {
				defer y.Close()
				content, err := readRecord(y, recordHello)
				if err != nil {
					return
				}
				h, err := decodeHello(content)
				if err != nil {
					t.Error(err)
					return
				}
				h.Host, h.Nodes, h.PDIDs = "b", [2]device.NodeID{2, 3}, r.table[1].PDIDs
				_, _ = y.Write(appendControl(nil, recordHello, encodeHello(h)))
				if _, err := readRecord(y, recordReady); err != nil {
					return
				}
				links.Add(1)
				_, _ = y.Write(appendControl(nil, recordIdle, nil))
				_, _ = io.Copy(io.Discard, y)
			}()
			return true
		}
		a := r.start(0, r.tableOf(0), nil)
		for range 500 {
			a.Send(block(0, 2, 500, 1))
			time.Sleep(10 * time.Millisecond)
		}
		a.stop()
		if n := links.Load() / 2; n < 2 || n > 20 {
			t.Errorf("%d links in 5 s", n)
		}
	})
}

// Frames and messages that cross the end of a link arrive, once and in their order.
func TestIdleCrossing(t *testing.T) {
	cabledFor(t, 2*time.Second, func(r *rig, c *cable, a, b *host) {
		for n := range 200 {
			// Looks come every 150 ms, and the link is closed at one of them.
			time.Sleep(2500*time.Millisecond + time.Duration(rand.IntN(20))*150*time.Millisecond)
			for i, h := range []*host{a, b} {
				from, to := device.NodeID(2*i), device.NodeID(2-2*i)
				for k := range 3 {
					h.Send(block(from, to, 500, byte(3*n+k)))
					if err := h.Tell(h.Info()[0].Host, fmt.Append(nil, n, k)); err != nil {
						t.Fatal(err)
					}
					if rand.IntN(2) == 0 {
						time.Sleep(time.Duration(rand.IntN(10)) * 15 * time.Millisecond)
					}
				}
			}
			for _, h := range []*host{a, b} {
				frames, told := 0, 0
				for frames+told < 6 {
					g := h.await(t, "frame or message", func(g got) bool { return g.frame != nil || g.told != "" && g.changed == nil || g.ready != nil })
					switch {
					case g.ready != nil:
						t.Fatalf("round %d: LinkReady(%v)", n, *g.ready)
					case g.frame != nil && g.frame.ID == device.TransactionID(byte(3*n+frames)):
						frames++
					case g.told == fmt.Sprintf("%s:%s", h.Info()[0].Host, fmt.Append(nil, n, told)):
						told++
					default:
						t.Fatalf("round %d, host %s: %+v after %d frames and %d messages", n, h.name, g, frames, told)
					}
				}
			}
		}
		if n := a.Info()[0].Connects; n < 50 {
			t.Errorf("the link was closed %d times only", n)
		}
	})
}

// The link of an idle host is cut, drains, moves, and is struck, as one that is up.
func TestIdleChanges(t *testing.T) {
	cabled(t, func(r *rig, c *cable, a, b *host) {
		for _, h := range []*host{a, b} {
			awaitState(t, Idle, a, b)
			peer := h.Info()[0].Host
			h.remaining()
			if err := h.Drain(peer, true); err != nil {
				t.Fatal(err)
			}
			awaitState(t, Drained, h)
			if i := h.Info()[0]; i.Connected || !i.Draining {
				t.Errorf("a link that is idle and drained: %+v", i)
			}
			if err := h.Drain(peer, false); err != nil || h.Info()[0].Draining {
				t.Fatal(err)
			}
			awaitState(t, Idle, h)
			if err := h.Cut(peer, time.Second); err != nil || h.Info()[0].State != CutOff {
				t.Fatalf("%+v, %v", h.Info(), err)
			}
			h.awaitReady(t, false)
			h.await(t, "Changed", func(g got) bool { return g.changed != nil && !*g.changed && !g.idle })
			h.awaitReady(t, true) // without traffic, as after any cut
			awaitState(t, Idle, a, b)
			h.remaining()
			table := r.tableOf(int(h.name[0] - 'a'))
			if err := h.SetTable(table); err != nil { // a changed entry must be noticed soon
				t.Fatal(err)
			}
			h.await(t, "Changed", func(g got) bool { return g.changed != nil && *g.changed })
			awaitState(t, Idle, a, b)
			table.Hosts[int(peer[0]-'a')].Address = "elsewhere"
			if err := h.SetTable(table); err != nil {
				t.Fatal(err)
			}
			h.await(t, "Changed", func(g got) bool { return g.changed != nil && *g.changed })
		}
		awaitState(t, Idle, a, b)
		table := r.tableOf(1)
		table.Hosts = table.Hosts[1:]
		if err := b.SetTable(table); err != nil {
			t.Fatal(err)
		}
		b.await(t, "gone", func(g got) bool { return g.gone })
		a.Send(block(0, 2, 500, 1))
		a.awaitReady(t, false)
		a.awaitInfo(t, "b", "refusal", func(i Info) bool {
			return i.State == Unreachable && contains(i.LastError, []string{"not in the table"})
		})
	})
}

// A link that does not come up again is down: after 450 ms the sink knows it, and after 5 s what waited is dropped.
func TestIdleAndCut(t *testing.T) {
	cabled(t, func(r *rig, c *cable, a, b *host) {
		for _, h := range []*host{a, b} {
			awaitState(t, Idle, a, b)
			first := a.Info()[0].Nodes.First + b.Info()[0].Nodes.First - h.Info()[0].Nodes.First
			h.remaining()
			c.set(true)
			began := time.Now()
			h.Send(block(first, h.Info()[0].Nodes.First, 500, 1))
			h.awaitReady(t, false)
			if d := time.Since(began); d < 400*time.Millisecond || d > 700*time.Millisecond {
				t.Errorf("not ready after %v", d)
			}
			awaitState(t, Unreachable, h)
			if d := time.Since(began); d < 4*time.Second || d > 6*time.Second {
				t.Errorf("unreachable after %v", d)
			}
			c.set(false)
			h.awaitReady(t, true)
		}
		awaitState(t, Idle, a, b)
		c.set(true)
		b.Send(block(2, 0, 500, 7))
		time.Sleep(3 * time.Second)
		c.set(false)
		if g := a.await(t, "frame that has waited", isFrame); g.frame.ID != 7 {
			t.Errorf("%+v", g)
		}
	})
}

// The pfd of an idle link is another one: its link is a new one for the host that stayed.
func TestIdleAndRestart(t *testing.T) {
	cabled(t, func(r *rig, c *cable, a, b *host) {
		for i, h := range []*host{a, b} {
			awaitState(t, Idle, a, b)
			other := []*host{b, a}[i]
			h.stop()
			other.remaining()
			h = r.start(i, r.tableOf(i), nil)
			h.awaitReady(t, true)
			other.await(t, "Changed", func(g got) bool { return g.changed != nil && *g.changed })
			h.await(t, "Changed", func(g got) bool { return g.changed != nil && *g.changed })
			*[]**host{&a, &b}[i] = h
		}
		a.stop()
		b.stop()
	})
}
