package user

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestPostMapDMA: a posted DMA_MAP takes effect before any later message, even if more are
// outstanding than answers fit into the socket.
func TestPostMapDMA(t *testing.T) {
	for _, o := range []Options{{}, {NoTwin: true}} {
		s, d, c := setUp(t, o)
		const n = 20 * maxPosted
		fd := memfd(t, 2*n*4096, 0)
		for i := range uint64(n) {
			ok(t, c.PostMapDMA(i<<13, 4096, fd, i<<13, both))
			if len(c.maps.due) > maxPosted {
				t.Fatalf("%d without an answer", len(c.maps.due))
			}
		}
		doCopy(t, c, 0, (n-1)<<13, 4096, 0)
		ok(t, d.lastDMA())
		ok(t, c.Flush())
		if m, f := s.DMA().Mappings(); m != n || f != 1 || len(c.maps.due) != 0 {
			t.Errorf("%d mappings of %d files, %d without an answer", m, f, len(c.maps.due))
		}
		ok(t, c.UnmapAllDMA())
		ok(t, c.PostMapDMA(0, 4096, fd, 0, both))
		ok(t, c.UnmapDMA(0, 4096)) // in this order
		if m, f := s.DMA().Mappings(); m != 0 || f != 0 {
			t.Errorf("%d mappings of %d files left", m, f)
		}
	}
}

// TestPostMapDMARefused: a refusal is reported once, before Flush or the next method that awaits
// an answer returns, which still does its work; the range can be mapped again.
func TestPostMapDMARefused(t *testing.T) {
	type refusal struct {
		addr, size uint64
		err        error
	}
	var refused []refusal
	s, _, c := setUp(t, Options{MapRefused: func(addr, size uint64, err error) {
		refused = append(refused, refusal{addr, size, err})
	}}, func(c *Config) { c.MaxMaps = 2 })
	fd := memfd(t, 1<<20, 0)
	ok(t, c.MapDMA(0, 4096, fd, 0, both))
	ok(t, c.MapDMA(0x10000, 4096, fd, 0, both))
	ok(t, c.Write(0, 8, 4, 0xfeed))
	reported := func(name string, addrs ...uint64) {
		t.Helper()
		if len(refused) != len(addrs) {
			t.Fatalf("%s: %d refusals are reported, want %d", name, len(refused), len(addrs))
		}
		for i, r := range refused {
			if r.addr != addrs[i] || r.size != 4096 || !errors.Is(r.err, unix.ENOSPC) || errors.Is(r.err, ErrGone) {
				t.Errorf("%s: %v", name, r)
			}
		}
		refused = nil
	}
	for name, f := range map[string]func() error{
		"Flush": c.Flush,
		"Read": func() error {
			v, err := c.Read(0, 8, 4)
			if v != 0xfeed {
				t.Errorf("read %#x", v)
			}
			return err
		},
		"Write":      func() error { return c.Write(0, 16, 4, 1) },
		"ReadRegion": func() error { return c.ReadRegion(0, 0, make([]byte, 64)) },
		"WriteMulti": func() error {
			n, err := c.WriteMulti([]Write{{16, 0, 4, [8]byte{1}}})
			if n != 1 {
				t.Errorf("%d writes", n)
			}
			return err
		},
		"UnmapDMA": func() error { return c.UnmapDMA(1<<40, 4096) },
	} {
		ok(t, c.PostMapDMA(0x20000, 4096, fd, 0, both))
		ok(t, c.Post(0, 24, 4, 7)) // waits for nothing
		ok(t, f())
		reported(name, 0x20000)
		ok(t, f())
		reported(name)
	}
	// So does a method that fails itself.
	ok(t, c.PostMapDMA(0x20000, 4096, fd, 0, both))
	if err := c.Write(3, 0, 4, 0); !errors.Is(err, unix.EINVAL) {
		t.Error(err)
	}
	reported("a refused Write", 0x20000)
	// More refusals than may be without an answer.
	var all []uint64
	for i := range uint64(3 * maxPosted) {
		all = append(all, 0x20000+i<<13)
		ok(t, c.PostMapDMA(all[i], 4096, fd, 0, both))
	}
	ok(t, c.Flush())
	if len(c.maps.due) != 0 {
		t.Errorf("%d without an answer", len(c.maps.due))
	}
	reported("Flush", all...)
	ok(t, c.Flush())
	// The client itself refuses overlaps and invalid mappings.
	if err := c.PostMapDMA(0, 4096, fd, 0, both); !errors.Is(err, unix.EEXIST) {
		t.Error(err)
	}
	ok(t, c.UnmapDMA(0x10000, 4096))
	ok(t, c.PostMapDMA(0x20000, 4096, fd, 0, both))
	ok(t, c.Flush())
	ok(t, s.DMA().Write(0x20000, []byte{1}))
	if n := s.Stats().MapsRefused; n != 7+3*maxPosted {
		t.Errorf("%d refusals counted", n)
	}
}

// TestPostMapDMALost: the answers are lost with the connection.
func TestPostMapDMALost(t *testing.T) {
	fd := memfd(t, 1<<20, 0)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	ok(t, err)
	peer := &rawSession{t, nil, newSocket(fds[1]), newInbox(1 << 20)}
	go func() { // a server that agrees, and takes what comes
		for {
			m, more := peer.receive()
			switch {
			case !more:
				return
			case m.Command == CmdVersion:
				_ = peer.sock.send(raw(m.ID, CmdVersion, flagReply, hello("{}")), nil)
			case m.Command == CmdDeviceInfo:
				_ = peer.sock.send(raw(m.ID, CmdDeviceInfo, flagReply, le(16, DevicePCI, 9, 5)), nil)
			case m.Command == CmdDMAUnmap:
				peer.sock.shutdown()
			}
			closeFDs(m.fds)
		}
	}()
	c, err := newClient(t.Context(), fds[0], Options{})
	ok(t, err)
	defer c.Close()
	ok(t, c.PostMapDMA(0, 4096, fd, 0, both))
	ok(t, c.PostMapDMA(4096, 4096, fd, 0, both))
	if err := c.UnmapDMA(1<<30, 4096); !errors.Is(err, ErrGone) {
		t.Error(err)
	}
	if err := c.Flush(); !errors.Is(err, ErrGone) {
		t.Error(err)
	}
	if err := c.PostMapDMA(8192, 4096, fd, 0, both); !errors.Is(err, ErrGone) {
		t.Error(err)
	}
	peer.sock.close()
}

// TestPostedMapsBesideRequests posts DMA_MAPs beside awaited requests, posted writes and the
// server's own messages: no side waits for room in the socket until a time-out.
func TestPostedMapsBesideRequests(t *testing.T) {
	for _, twin := range []bool{true, false} {
		t.Run(fmt.Sprint("twin ", twin), func(t *testing.T) {
			s, _, c := setUp(t, Options{NoTwin: !twin})
			fd := memfd(t, 1<<20, 0)
			const message, base, rounds = 1 << 40, 4 << 30, 3000
			ok(t, c.MapBytes(message, make([]byte, 4096), both))
			var posts, all sync.WaitGroup
			over := make(chan struct{})
			each := func(wg *sync.WaitGroup, f func(i uint64) error) {
				wg.Go(func() {
					for i := range uint64(rounds) {
						if err := f(i); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			for g := range uint64(2) {
				each(&posts, func(i uint64) error {
					return c.PostMapDMA(base+(g*rounds+i)<<12, 4096, fd, i%256<<12, both)
				})
			}
			each(&posts, func(i uint64) error { return c.Post(0, 0, 4, i) })
			until := func(f func() error) {
				all.Go(func() {
					for {
						select {
						case <-over:
							return
						default:
						}
						if err := f(); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			until(func() error { return c.ReadRegion(0, 0, make([]byte, 2048)) })
			until(func() error { return s.DMA().Read(message, make([]byte, 4096)) })
			posts.Wait()
			close(over)
			all.Wait()
			ok(t, c.Flush())
			if n := len(c.maps.due); n != 0 {
				t.Errorf("%d maps without an answer", n)
			}
			for i := range uint64(2 * rounds) {
				ok(t, s.DMA().Read(base+i<<12, make([]byte, 8)))
			}
		})
	}
}

// TestServedBehindAnAnswer: a request of the server that arrives together with an answer is
// served without another request of the client, also if the monitor was not polling at that
// moment.
func TestServedBehindAnAnswer(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	ok(t, err)
	peer := &rawSession{t, nil, newSocket(fds[1]), newInbox(1 << 20)}
	const alone, more = 1 << 20, 1 << 21
	served, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			m, open := peer.receive()
			closeFDs(m.fds)
			answer := raw(m.ID, m.Command, flagReply, m.body)
			switch {
			case !open:
				return
			case m.isReply():
				served <- struct{}{}
				continue
			case m.Command == CmdVersion:
				answer = raw(m.ID, CmdVersion, flagReply, hello("{}"))
			case m.Command == CmdDeviceInfo:
				answer = raw(m.ID, CmdDeviceInfo, flagReply, le(16, DevicePCI, 9, 5))
			case m.Command == CmdDMAUnmap && order.Uint64(m.body[8:]) == more:
				answer = append(answer, raw(1, CmdDMARead, 0, le(uint64(0), uint64(64)))...)
			}
			_ = peer.sock.send(answer, nil) // it may be over
		}
	}()
	c, err := newClient(t.Context(), fds[0], Options{NoTwin: true})
	ok(t, err)
	ok(t, c.MapBytes(0, make([]byte, 4096), both))
	for i := range 2000 {
		ok(t, c.UnmapDMA(alone, 4096)) // its answer wakes the look-out
		ok(t, c.UnmapDMA(more, 4096))
		select {
		case <-served:
		case <-c.Done():
			t.Fatal(c.Err())
		case <-time.After(2 * time.Minute):
			t.Fatalf("round %d: the server's request is not answered", i)
		}
	}
	c.Close()
	<-over
	peer.sock.close()
}
