package user

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// served serves a test device at a path until the test ends.
func served(t testing.TB, change ...func(*Config)) (*Server, *testDevice, string) {
	t.Helper()
	s, d := newServer(t, change...)
	path := filepath.Join(t.TempDir(), "dev.sock")
	ctx, cancel := context.WithCancel(context.Background())
	done, ready := make(chan error, 1), make(chan struct{})
	go func() { done <- s.Serve(ctx, path, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		ok(t, <-done)
	})
	<-ready
	return s, d, path
}

func rawDial(t testing.TB, path string) *rawSession {
	t.Helper()
	fd, err := dial(path)
	ok(t, err)
	r := &rawSession{t, &session{fd: fd}, newSocket(fd), newInbox(2 << 20)}
	ok(t, r.sock.timeouts(20*time.Second, 20*time.Second))
	t.Cleanup(r.sock.close)
	return r
}

// TestConnectsInTurn: a client that connects after the last one has closed its end is served, a
// thousand times of a thousand, even while the device is busy with the cleanup of the last.
func TestConnectsInTurn(t *testing.T) {
	s, _, path := served(t)
	fd := memfd(t, 1<<20, 0)
	const n = 1000
	for i := range n {
		c, err := Dial(t.Context(), path, Options{})
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		for p := range uint64(i % 3 * 16) { // something to clean up after
			ok(t, c.MapDMA(p<<13, 4096, fd, p<<13, both))
		}
		c.Close()
	}
	if st := s.Stats(); st.Connections != n || st.Turned != 0 {
		t.Errorf("%+v", st)
	}
}

// TestConnectsAtOnce: of a thousand at once one is served. Each of the others receives EBUSY in
// the answer to its VERSION.
func TestConnectsAtOnce(t *testing.T) {
	s, _, path := served(t)
	c, err := Dial(t.Context(), path, Options{})
	ok(t, err)
	defer c.Close()
	const n = 1000
	var busy atomic.Int64
	var all sync.WaitGroup
	sem := make(chan struct{}, 200) // each holds a thread
	for range n {
		all.Go(func() {
			sem <- struct{}{}
			defer func() { <-sem }()
			c, err := Dial(t.Context(), path, Options{})
			for errors.Is(err, unix.EAGAIN) { // the socket's queue is full
				c, err = Dial(t.Context(), path, Options{})
			}
			var answer *Error
			switch {
			case err == nil:
				c.Close()
				t.Error("a second client was served")
			case errors.Is(err, unix.EBUSY) && errors.As(err, &answer) && answer.Command == CmdVersion:
				busy.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if st := s.Stats(); busy.Load() != n || st.Turned != n || st.Connections != 1 {
		t.Errorf("%d were told that the device is busy, %+v", busy.Load(), st)
	}
	_, err = c.Read(RegionConfig, 0, 4)
	ok(t, err)
}

// TestBusyAnswer: the answer has the ID of the VERSION that it answers, as QEMU requires.
func TestBusyAnswer(t *testing.T) {
	_, _, path := served(t)
	c, err := Dial(t.Context(), path, Options{})
	ok(t, err)
	defer c.Close()
	r := rawDial(t, path)
	m := r.call(CmdVersion, hello("{}")) // ID 77
	if !m.isError() || unix.Errno(m.Error) != unix.EBUSY || len(m.body) != 0 {
		t.Errorf("%+v", m.Header)
	}
	if m, more := r.receive(); more {
		t.Errorf("%+v", m.Header)
	}
}

// slow is a device that takes long to release its client.
type slow struct {
	*testDevice
	gone, leave chan struct{}
}

func (d *slow) Disconnected() {
	d.testDevice.Disconnected()
	d.gone <- struct{}{}
	<-d.leave
}

// TestWaitsForTheLast: a client that connects while the last one is being cleaned up waits for
// that, and no longer than Timeout.
func TestWaitsForTheLast(t *testing.T) {
	for _, late := range []bool{false, true} {
		d := &slow{&testDevice{}, make(chan struct{}, 4), make(chan struct{})}
		cfg := testConfig(d.testDevice)
		cfg.BARs[2] = BAR{}
		if late {
			cfg.Timeout = 20 * time.Millisecond
		}
		s, err := New(cfg, d)
		ok(t, err)
		d.srv, d.rest.L = s, &d.mu
		r := rawConnect(t, s)
		r.agree("{}")
		r.sock.close()
		<-d.gone
		r2 := rawConnect(t, s)
		r2.send(raw(5, CmdVersion, 0, hello("{}")))
		if late {
			if m, _ := r2.receive(); m.ID != 5 || unix.Errno(m.Error) != unix.EBUSY {
				t.Errorf("%+v", m.Header)
			}
		}
		close(d.leave)
		<-r.ended
		if !late {
			if m, _ := r2.receive(); m.ID != 5 || m.isError() {
				t.Errorf("%+v", m.Header)
			}
		}
		_ = r2.close()
		s.Close()
	}
}

// TestSlowVersion: a VERSION that arrives byte by byte does not keep other clients out. It must
// be complete by Timeout, however steadily bytes arrive.
func TestSlowVersion(t *testing.T) {
	s, _, path := served(t, func(c *Config) { c.Timeout = 500 * time.Millisecond })
	var all sync.WaitGroup
	for range 8 {
		r := rawDial(t, path)
		all.Go(func() {
			start := time.Now()
			for _, b := range raw(1, CmdVersion, 0, hello(fmt.Sprintf("{%100s}", ""))) {
				if r.sock.send([]byte{b}, nil) != nil {
					return // it hung up
				}
				if p := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLRDHUP}}; poll(p, 50) {
					t.Logf("disconnected after %v", time.Since(start))
					return
				}
			}
			t.Error("it was read to its end")
		})
	}
	c, err := Dial(t.Context(), path, Options{}) // meanwhile
	ok(t, err)
	c.Close()
	all.Wait()
	if st := s.Stats(); st.Aborted != 8 || st.Connections != 1 || st.Turned != 0 {
		t.Errorf("%+v", st)
	}
}

func poll(p []unix.PollFd, ms int) bool {
	for {
		n, err := unix.Poll(p, ms)
		if err != unix.EINTR {
			return n > 0
		}
	}
}

// TestSlowMessage: a message must be complete within Timeout of its first byte. Between two
// messages a client may be silent without limit.
func TestSlowMessage(t *testing.T) {
	s, _ := newServer(t, func(c *Config) { c.Timeout = 100 * time.Millisecond })
	r := rawConnect(t, s)
	r.agree("{}")
	if p := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLRDHUP}}; poll(p, 300) {
		t.Fatal("an idle client was disconnected")
	}
	all := raw(2, CmdRegionWrite, 0, le(uint64(0), 0, 100, make([]byte, 100)))
	for _, b := range all[:len(all)-1] {
		if r.sock.send([]byte{b}, nil) != nil {
			break
		}
		if p := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLRDHUP}}; poll(p, 20) {
			break
		}
	}
	if err := <-r.ended; !errors.Is(err, ErrTimeout) {
		t.Error(err)
	}
	r.sock.close()
}

// TestNeverReads: a client that does not read its replies, or reads only a byte now and then, is
// disconnected at Timeout, which counts for the whole of a send.
func TestNeverReads(t *testing.T) {
	const timeout = 400 * time.Millisecond
	for _, sips := range []bool{false, true} {
		s, _ := newServer(t, func(c *Config) { c.Timeout = timeout })
		r := rawConnect(t, s)
		r.agree("{}")
		r.command(CommandMemory)
		var sender sync.WaitGroup
		sender.Go(func() { // requests for more than any buffer holds
			for range 10000 {
				if r.sock.send(raw(3, CmdRegionRead, 0, le(uint64(0), 0, 4096)), nil) != nil {
					return
				}
			}
		})
		start := time.Now()
		var err error
		for over := false; !over; {
			select {
			case err = <-r.ended:
				over = true
			case <-time.After(timeout / 8):
				if sips {
					_, _ = unix.Read(r.fd, make([]byte, 5000))
				}
			}
		}
		if !errors.Is(err, ErrTimeout) {
			t.Error(err)
		}
		// A ratio, independent of the machine's speed: without the bound it would take twice as
		// long.
		t.Logf("sips %v: disconnected after %v, Timeout is %v", sips, time.Since(start), timeout)
		sender.Wait() // before its descriptor's number is another's
		r.sock.close()
	}
}

// turnCount counts the accesses of each turn of a device's owner.
type turnCount struct {
	*testDevice
	mu                    sync.Mutex
	now, most, all, turns int
}

func (d *turnCount) Read(int, uint64, int) uint64   { d.now++; return 0 }
func (d *turnCount) Write(int, uint64, int, uint64) { d.now++ }

func (d *turnCount) run(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now = 0
	f()
	d.most = max(d.most, d.now)
	d.all += d.now
	d.turns++
}

// TestTurns: a turn of the owner has at most 128 accesses, whatever one message asks for, and the
// answer is the same as from one turn.
func TestTurns(t *testing.T) {
	d := &turnCount{testDevice: &testDevice{}}
	cfg := testConfig(d.testDevice)
	cfg.BARs[2], cfg.BARs[0].Size, cfg.Run = BAR{}, 1<<20, d.run
	s, err := New(cfg, d)
	ok(t, err)
	t.Cleanup(s.Close)
	c := newTestClient(t, s, Options{})
	ok(t, c.SetCommand(CommandMemory))
	ws := make([]Write, 43000)
	for i := range ws {
		ws[i] = Write{Offset: uint64(i % 4096 * 8), Count: 8}
	}
	odd := make([]Write, 1000)
	for i := range odd {
		odd[i] = Write{Offset: 1, Count: 8} // four accesses each
	}
	for _, x := range []struct {
		name string
		n    int
		f    func() error
	}{
		{"writes", 43000, func() error { _, err := c.WriteMulti(ws); return err }},
		{"crooked writes", 4000, func() error { _, err := c.WriteMulti(odd); return err }},
		{"read", 1 << 17, func() error { return c.ReadRegion(0, 0, make([]byte, 1<<20)) }},
		{"write", 1 << 17, func() error { return c.WriteRegion(0, 0, make([]byte, 1<<20)) }},
		{"many messages", 100 * 256, func() error { // one behind the other
			c.out.Lock()
			defer c.out.Unlock()
			for range 100 {
				if err := c.post(CmdRegionWrite, flagCommand|flagNoReply, append(RegionAccess{0, 0, 2048}.Append(make([]byte, HeaderSize)), make([]byte, 2048)...), nil, nil); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		d.mu.Lock()
		d.most, d.all, d.turns = 0, 0, 0
		d.mu.Unlock()
		ok(t, x.f())
		_, err := c.Read(RegionConfig, 0, 4) // the turns before it are over then
		ok(t, err)
		d.mu.Lock()
		if d.most > turnAccesses || d.all != x.n {
			t.Errorf("%s: %d accesses in %d turns, %d in one; want %d, at most %d", x.name, d.all, d.turns, d.most, x.n, turnAccesses)
		}
		d.mu.Unlock()
	}
}

// TestWriteMultiWhole: if one write is invalid none is done, also if the checks take several
// turns.
func TestWriteMultiWhole(t *testing.T) {
	_, d, c := setUp(t, Options{})
	ws := make([]Write, 20000)
	for i := range ws {
		ws[i] = Write{Offset: uint64(i % 512 * 8), Count: 8}
	}
	ws[len(ws)-1].Offset = 4096
	d.taken()
	if n, err := c.WriteMulti(ws); n != 0 || !errors.Is(err, unix.EINVAL) {
		t.Errorf("%d writes, %v", n, err)
	}
	if a := d.taken(); len(a) != 0 {
		t.Errorf("%d accesses", len(a))
	}
}

// TestDescriptorsEverywhere sends each command with descriptors that it does not accept, up to as
// many as the kernel passes: none stays open, and the server continues.
func TestDescriptorsEverywhere(t *testing.T) {
	s, _ := newServer(t)
	fds := map[string]int{"memfd": memfd(t, 1<<16, 0), "eventfd": eventfd(t), "pipe": pipe(t)}
	before := openFDs(t)
	for cmd := range Command(21) {
		for _, n := range []int{1, 2, 8, 9, recvFDs, recvFDs + 1, maxFDs} {
			for name, fd := range fds {
				var list []int
				for range n {
					list = append(list, fd)
				}
				r := rawConnect(t, s)
				r.agree("{}")
				r.send(raw(2, cmd, 0, make([]byte, 32)), list...)
				m, more := r.receive()
				if more && (m.ID != 2 || !m.isError()) {
					t.Errorf("%v with %d of a %s: %+v", cmd, n, name, m.Header)
				}
				if err := r.close(); err == nil {
					t.Error("no reason for the end")
				}
				if after := fdsAfter(t, before); after != before {
					t.Fatalf("%v with %d of a %s: %d descriptors before, %d after", cmd, n, name, before, after)
				}
			}
		}
	}
}

// TestEdgesOfMemory: the last page of the address space can be mapped and accessed to its end;
// files of any size are accepted or refused for what they are.
func TestEdgesOfMemory(t *testing.T) {
	s, _, c := setUp(t, Options{})
	fd := memfd(t, 8192, 0)
	top := ^uint64(4095)
	ok(t, c.MapDMA(top, 4096, fd, 0, both))
	ok(t, c.MapDMA(0, 4096, fd, 4096, both)) // goes on where the last page ends, and is no part of it
	if m, _ := s.DMA().Mappings(); m != 2 {
		t.Errorf("%d mappings", m)
	}
	ok(t, s.DMA().Write(top+4088, []byte("the last")))
	if err := s.DMA().Write(top+4088, []byte("the last and more")); !errors.Is(err, ErrUnmapped) {
		t.Error(err)
	}
	ok(t, c.UnmapDMA(1<<63, 1<<63))
	if m, _ := s.DMA().Mappings(); m != 1 {
		t.Errorf("%d mappings left", m)
	}
	for _, size := range []int64{0, 1, 4095, 1 << 41, 1 << 62} {
		fd := memfd(t, size, 0)
		sp := newSpace(10)
		err := sp.add(DMAMap{32, both, 0, 0x10000, 4096}, fd)
		if (err == nil) != (size >= 1<<41) {
			t.Errorf("a file of %d bytes: %v", size, err)
		}
		if err := sp.add(DMAMap{32, both, 1 << 42, 0x20000, 4096}, fd); err == nil {
			t.Errorf("a file of %d bytes is mapped up to %#x", size, 1<<42)
		}
		sp.clear()
	}
}
