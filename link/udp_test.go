package link

import (
	"bytes"
	"net"
	"sync"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// udpPair returns two UDP sockets that are connected to each other.
func udpPair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	for range 100 {
		x, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		y, err := net.DialUDP("udp", nil, x.LocalAddr().(*net.UDPAddr))
		if err != nil {
			t.Fatal(err)
		}
		// A connected socket replaces x, because net has no call that connects an existing one.
		from, to := x.LocalAddr().(*net.UDPAddr), y.LocalAddr().(*net.UDPAddr)
		_ = x.Close()
		if z, err := net.DialUDP("udp", from, to); err == nil {
			return z, y
		}
		_ = y.Close()
	}
	t.Fatal("no two UDP sockets")
	return nil, nil
}

// lossy is a socket that keeps what was written, drops some, and repeats some.
type lossy struct {
	net.Conn
	mu   sync.Mutex
	n    int
	sent [][]byte
}

func (c *lossy) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.sent = append(c.sent, bytes.Clone(b))
	n := c.n
	c.n++
	c.mu.Unlock()
	if n%5 == 3 {
		return len(b), nil
	}
	if n%7 == 2 {
		_, _ = c.Conn.Write(b)
	}
	return c.Conn.Write(b)
}

// Frames travel as datagrams: those of lost ones do not arrive, those of repeated ones arrive once,
// and each packet that arrives has its bytes. Nothing plain is on the wire if TLS is on. Messages of
// pfds do not get lost.
func TestDatagrams(t *testing.T) {
	for _, tls := range []bool{true, false} {
		r := newRig(t, 2, tls)
		r.table[0].UDP, r.table[1].UDP = true, true
		x, y := udpPair(t)
		sockets := map[string]net.Conn{"a": &lossy{Conn: x}, "b": &lossy{Conn: y}}
		var given sync.Map
		r.dial = func(w Want, from *host) bool {
			if !w.UDP {
				return false
			}
			if _, before := given.LoadOrStore(from.name, true); !before {
				from.TakeUDP(w.Host, sockets[from.name])
			}
			return true
		}
		a, b := r.two()
		const count = 300
		for n := range count {
			f := block(0, 2, 5000, byte(n))
			f.Block = uint32(n)
			a.Send(f)
			if err := a.Tell("b", []byte{byte(n)}); err != nil {
				t.Fatal(err)
			}
		}
		var whole, packets int
		seen := map[[2]uint32]int{}
		for told := 0; told < count || packets < 200; {
			g := b.await(t, "frame or message", func(g got) bool { return g.frame != nil || g.told != "" && g.changed == nil })
			if g.frame == nil {
				if g.told != "a:"+string([]byte{byte(told)}) {
					t.Fatalf("%q", g.told)
				}
				told++
				continue
			}
			want := block(0, 2, 5000, byte(g.frame.Block))
			want.Block, want.Present = g.frame.Block, g.frame.Present
			if !same(g.frame, want) {
				t.Fatalf("%+v", g.frame.Header)
			}
			if g.frame.Present == wire.All(5000) {
				whole++
			}
			for i := range uint32(20) {
				if g.frame.Present>>i&1 != 0 {
					packets++
					if seen[[2]uint32{g.frame.Block, i}]++; seen[[2]uint32{g.frame.Block, i}] > 1 {
						t.Fatalf("packet %d of block %d came twice", i, g.frame.Block)
					}
				}
			}
		}
		sent := sockets["a"].(*lossy)
		sent.mu.Lock()
		plain := 0
		pattern := block(0, 2, 5000, 0).Payload[:64]
		for _, d := range sent.sent {
			if len(d) > maxDatagram {
				t.Errorf("a datagram of %d bytes", len(d))
			}
			if bytes.Contains(d, pattern) {
				plain++
			}
		}
		if tls == (plain > 0) {
			t.Errorf("TLS %v: %d datagrams are plain", tls, plain)
		}
		sent.mu.Unlock()
		// A new link has new keys: datagrams of the former one do nothing.
		if err := a.Cut("b", 1); err != nil {
			t.Fatal(err)
		}
		for h, peer := range map[*host]string{a: "b", b: "a"} {
			h.awaitInfo(t, peer, "up", func(i Info) bool { return i.Connects == 2 && i.State == Up })
		}
		if !tls {
			continue
		}
		old := b.Info()[0]
		sent.mu.Lock()
		for _, d := range sent.sent[:5] {
			_, _ = sent.Conn.Write(d)
		}
		sent.mu.Unlock()
		b.awaitInfo(t, "a", "count", func(i Info) bool {
			a.Send(block(0, 2, 5000, 99)) // behind them; some of it arrives
			return i.FramesReceived > old.FramesReceived
		})
		b.await(t, "end of the former link", func(g got) bool { return g.changed != nil && *g.changed })
		if g := b.await(t, "frame", isFrame); g.frame.ID != 99 {
			t.Errorf("%+v", g.frame.Header)
		}
	}
}

// A counter is fresh once, and while it is not too old.
func TestReplays(t *testing.T) {
	var r replays
	seen := map[uint64]bool{}
	for _, n := range []uint64{1, 2, 2, 5, 4, 4, 3, 1, 100, 36, 37, 37, 38, 100, 163, 164, 100, 101, 101, 1 << 40, 1<<40 - 63, 1<<40 - 64, 164} {
		last := uint64(0)
		for s := range seen {
			last = max(last, s)
		}
		want := !seen[n] && n+64 > last
		if got := r.fresh(n); got != want {
			t.Errorf("%d: %v, want %v", n, got, want)
		}
		if want {
			seen[n] = true
		}
	}
}

// The MTU limits datagrams.
func TestDatagramsFitTheMTU(t *testing.T) {
	q := newQueue(bulkSize)
	q.cut = cutFrame
	q.limit = leastMTU - ipUDP - 16
	q.begin(nil)
	if q.frame(block(0, 2, 16384, 1)) != putDone || q.frame(&wire.Frame{Header: wire.Header{Kind: wire.Ack, DstNode: device.NodeID(2)}}) != putDone {
		t.Fatal("not taken")
	}
	total := 0
	for _, c := range q.chunks {
		if len(c) > q.limit {
			t.Errorf("%d bytes", len(c))
		}
		total += len(c)
	}
	if total != q.bytes || len(q.chunks) != 22 { // 64 packets, 3 a datagram, with the acknowledgement's
		t.Errorf("%d bytes in %d datagrams, accounted for %d", total, len(q.chunks), q.bytes)
	}
}
