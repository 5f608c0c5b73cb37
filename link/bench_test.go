package link

import (
	"crypto/tls"
	"net"
	"sync/atomic"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// quick is a sink that counts, and answers each frame if it is to.
type quick struct {
	*host
	answer func(f *wire.Frame)
	octets atomic.Int64
	come   chan struct{}
}

func (q *quick) Arrive(frames []*wire.Frame, done, _ func()) bool {
	n := 0
	for _, f := range frames {
		n += len(f.Payload)
		if q.answer != nil {
			q.answer(f)
		}
	}
	q.octets.Add(int64(n))
	done()
	select {
	case q.come <- struct{}{}:
	default:
	}
	return true
}

func (q *quick) Drain(first, last device.NodeID, on bool) {}

// benchPair starts two hosts with quick sinks.
func benchPair(b *testing.B, tls bool) (x, y *quick) {
	r := newRig(b, 2, tls)
	r.standard = true
	var both [2]*quick
	for i := range both {
		q := &quick{come: make(chan struct{}, 1)}
		r.sink = func(h *host) Sink {
			q.host = h
			return q
		}
		r.start(i, r.tableOf(i), nil)
		both[i] = q
	}
	both[0].awaitReady(b, true)
	both[1].awaitReady(b, true)
	return both[0], both[1]
}

// A message of 64 bytes to another host and back, beside 64 bytes over a bare TLS connection.
func BenchmarkRoundTrip(b *testing.B) {
	for _, c := range []struct {
		name string
		tls  bool
	}{{"tls", true}, {"plain", false}} {
		b.Run("link-"+c.name, func(b *testing.B) {
			x, y := benchPair(b, c.tls)
			message := func(from, to device.NodeID) *wire.Frame {
				return &wire.Frame{Header: wire.Header{Kind: wire.Message, SrcNode: from, DstNode: to}, MessageLen: 8}
			}
			ping, pong := message(0, 2), message(2, 0)
			y.answer = func(*wire.Frame) { y.Send(pong) }
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				x.Send(ping)
				<-x.come
			}
		})
		b.Run("bare-"+c.name, func(b *testing.B) {
			x, y := barePair(b, c.tls)
			go func() {
				buf := make([]byte, 64)
				for {
					if _, err := y.Read(buf); err != nil {
						return
					}
					_, _ = y.Write(buf)
				}
			}()
			buf := make([]byte, 64)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				_, _ = x.Write(buf)
				_, _ = x.Read(buf)
			}
		})
	}
}

// Blocks of 16 KiB to another host, beside a bare TLS connection that carries as many bytes.
func BenchmarkStream(b *testing.B) {
	for _, c := range []struct {
		name string
		tls  bool
	}{{"tls", true}, {"plain", false}} {
		b.Run("link-"+c.name, func(b *testing.B) {
			x, y := benchPair(b, c.tls)
			f := block(0, 2, device.BlockSize, 1)
			b.SetBytes(device.BlockSize)
			b.ReportAllocs()
			b.ResetTimer()
			for n := range b.N {
				for int64(n)*device.BlockSize-y.octets.Load() >= bulkSize/2 {
					<-y.come
				}
				x.Send(f)
			}
			for y.octets.Load() < int64(b.N)*device.BlockSize {
				<-y.come
			}
			if d := x.Info()[0].Dropped; d != 0 {
				b.Errorf("%d frames were dropped", d)
			}
		})
		b.Run("bare-"+c.name, func(b *testing.B) {
			x, y := barePair(b, c.tls)
			done := make(chan struct{})
			go func() {
				defer close(done)
				buf := make([]byte, device.BlockSize)
				for got := 0; got < b.N*device.BlockSize; {
					n, err := y.Read(buf)
					if got += n; err != nil {
						return
					}
				}
			}()
			buf := make([]byte, device.BlockSize)
			b.SetBytes(device.BlockSize)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				_, _ = x.Write(buf)
			}
			<-done
		})
	}
}

// barePair returns two connected sockets, with TLS or without.
func barePair(b *testing.B, secure bool) (x, y net.Conn) {
	r := newRig(b, 2, true)
	x, y = r.pair()
	b.Cleanup(func() { _, _ = x.Close(), y.Close() })
	if !secure {
		return x, y
	}
	conf := func(i int) *tls.Config {
		table := r.tableOf(i)
		k, err := newKeys(&table, r.table[i])
		if err != nil {
			b.Fatal(err)
		}
		return k.config("x")
	}
	client, server := tls.Client(x, conf(0)), tls.Server(y, conf(1))
	go func() { _ = server.Handshake() }()
	if err := client.Handshake(); err != nil {
		b.Fatal(err)
	}
	return client, server
}

// A frame that is sent and arrives allocates nothing.
func TestFramesDoNotAllocate(t *testing.T) {
	r := newRig(t, 2, false) // crypto/tls allocates for each of its records
	var q *quick
	r.sink = func(h *host) Sink {
		q = &quick{host: h, come: make(chan struct{}, 1)}
		return q
	}
	a := r.start(0, r.tableOf(0), nil)
	b := r.start(1, r.tableOf(1), nil)
	a.awaitReady(t, true)
	b.awaitReady(t, true)
	f, sent := block(0, 2, device.BlockSize, 1), 0
	some := func() {
		for range 100 {
			for int64(sent)*device.BlockSize-q.octets.Load() >= bulkSize/2 {
				<-q.come
			}
			a.Send(f)
			sent++
		}
	}
	some()
	if n := testing.AllocsPerRun(100, some); n >= 10 { // heartbeats allocate a little
		t.Errorf("%v allocations for 100 frames", n)
	}
}
