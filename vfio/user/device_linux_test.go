package user

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testDevice is a PCI device for these tests. BAR 0 has 4 KiB of memory and records every access.
// A write to the doorbell in BAR 1 makes the device copy memory by DMA and raise a vector. BAR 2
// has a mapped page between two that are not mapped, and BAR 4 has MSI-X.
type testDevice struct {
	srv *Server

	mem      [4096]byte
	accesses []access
	resets   []ResetKind
	joined   int
	left     int
	dmaErr   error
	acts     int // copies under way
	rest     sync.Cond

	bar2 int // memfd
	mu   sync.Mutex
}

type access struct {
	write  bool
	bar    int
	offset uint64
	size   int
	value  uint64
}

// Registers of BAR 1.
const (
	regSrc  = 0x00 // 8
	regDst  = 0x08 // 8
	regLen  = 0x10 // 4
	regGo   = 0x18 // 4: copy, then raise the vector written
	bar1Len = 0x1000
)

func (d *testDevice) Read(bar int, offset uint64, size int) uint64 {
	v := uint64(0)
	if bar == 0 || bar == 1 {
		for i := size - 1; i >= 0; i-- {
			v = v<<8 | uint64(d.mem[(offset+uint64(bar)*2048+uint64(i))%4096])
		}
	}
	d.note(access{false, bar, offset, size, v})
	return v
}

func (d *testDevice) Write(bar int, offset uint64, size int, value uint64) {
	d.note(access{true, bar, offset, size, value})
	if bar == 0 || bar == 1 {
		for i := range size {
			d.mem[(offset+uint64(bar)*2048+uint64(i))%4096] = byte(value >> (8 * i))
		}
	}
	if bar == 1 && offset == regGo {
		d.act(int(value))
	}
}

// act copies on a goroutine of its own, since the writer is waiting for an answer.
func (d *testDevice) act(vector int) {
	r := func(at uint64, n int) uint64 {
		v := uint64(0)
		for i := n - 1; i >= 0; i-- {
			v = v<<8 | uint64(d.mem[2048+at+uint64(i)])
		}
		return v
	}
	p := make([]byte, min(r(regLen, 4), 1<<20))
	src, dst := r(regSrc, 8), r(regDst, 8)
	d.mu.Lock()
	d.acts++
	d.mu.Unlock()
	go func() {
		err := d.srv.DMA().Read(src, p)
		if err == nil {
			err = d.srv.DMA().Write(dst, p)
		}
		_ = d.srv.Interrupt(vector)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.dmaErr = err
		d.acts--
		d.rest.Broadcast()
	}()
}

// lastDMA waits for the copies in progress and returns the error of the last.
func (d *testDevice) lastDMA() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.acts > 0 {
		d.rest.Wait()
	}
	return d.dmaErr
}

func (d *testDevice) Reset(kind ResetKind) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.resets = append(d.resets, kind)
	clear(d.mem[:])
}

func (d *testDevice) resetKinds() []ResetKind {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.resets)
}

func (d *testDevice) Connected()    { d.mu.Lock(); d.joined++; d.mu.Unlock() }
func (d *testDevice) Disconnected() { d.mu.Lock(); d.left++; d.mu.Unlock() }

func (d *testDevice) note(a access) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.accesses) < 1<<16 {
		d.accesses = append(d.accesses, a)
	}
}

func (d *testDevice) taken() []access {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.accesses
	d.accesses = nil
	return a
}

const testVectors = 8

func testConfig(d *testDevice) Config {
	return Config{
		Identity: Identity{Vendor: 0x1af4, Device: 0x10ff, Class: 0xff0000, Revision: 3},
		BARs: [6]BAR{
			0: {Size: 4096},
			1: {Size: bar1Len},
			2: {Size: 4 * 4096, Is64: true, Prefetchable: true, FD: d.bar2, FDOffset: 4096, Areas: []Area{{4096, 4096}, {3 * 4096, 4096}}},
			4: {Size: 4096},
		},
		MSIX:     MSIX{Vectors: testVectors, BAR: 4, Table: 0, PBA: 0x800},
		IOEvents: []IOEvent{{BAR: 1, Offset: regGo, Size: 4, Value: 3}, {BAR: 1, Offset: 0x40, Size: 8, Value: 9}},
		Timeout:  20 * time.Second,
	}
}

// memfd makes a memfd of the size and closes it at the end of the test.
func memfd(t testing.TB, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("vfio-user-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if seals != 0 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func eventfd(t testing.TB) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// count reads an eventfd's count; 0 means none.
func count(t testing.TB, fd int) uint64 {
	t.Helper()
	var b [8]byte
	_, err := unix.Read(fd, b[:])
	if err == unix.EAGAIN {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return order.Uint64(b[:])
}

// await waits for an eventfd.
func await(t testing.TB, fd int) {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 20000)
		if err == unix.EINTR {
			continue
		}
		if n != 1 || err != nil {
			t.Fatalf("no event: %d, %v", n, err)
		}
		return
	}
}

// newServer makes a server of a test device and closes it at the end of the test.
func newServer(t testing.TB, change ...func(*Config)) (*Server, *testDevice) {
	t.Helper()
	d := &testDevice{bar2: memfd(t, 6*4096, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)}
	cfg := testConfig(d)
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg, d)
	if err != nil {
		t.Fatal(err)
	}
	d.srv, d.rest.L = s, &d.mu
	t.Cleanup(func() {
		s.Close()
		_ = d.lastDMA()
	})
	return s, d
}

// session is one connection to a server over a socket pair; ended receives the reason for which
// the server ended it.
type session struct {
	fd    int
	ended chan error
}

func connect(t testing.TB, s *Server) *session {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &session{fds[1], make(chan error, 1)}
	go func() { c.ended <- s.ServeConn(fds[0]) }()
	return c
}

func newTestClient(t testing.TB, s *Server, o Options) *Client {
	t.Helper()
	ses := connect(t, s)
	c, err := newClient(context.Background(), ses.fd, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		<-ses.ended
	})
	return c
}

// openFDs counts this process's descriptors.
func openFDs(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// fdsAfter waits until this process has the given number of descriptors again, because
// descriptors of mapped files are closed in the background. It returns how many there are.
func fdsAfter(t testing.TB, before int) (n int) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if n = openFDs(t); n == before || time.Now().After(end) {
			return n
		}
	}
}

func TestSmoke(t *testing.T) {
	before := openFDs(t)
	t.Run("all", func(t *testing.T) {
		for _, o := range []Options{{}, {NoTwin: true}} {
			s, d := newServer(t)
			c := newTestClient(t, s, o)
			if err := c.SetCommand(CommandMemory | CommandMaster); err != nil {
				t.Fatal(err)
			}
			if err := c.Write(0, 16, 4, 0x11223344); err != nil {
				t.Fatal(err)
			}
			if v, err := c.Read(0, 16, 4); err != nil || v != 0x11223344 {
				t.Fatalf("read %#x, %v", v, err)
			}
			ev := eventfd(t)
			if err := c.SetEventFDs(IRQMSIX, 2, IRQActionTrigger, []int{ev}); err != nil {
				t.Fatal(err)
			}
			m := memfd(t, 1<<20, 0)
			if err := c.MapDMA(0x10000, 0x10000, m, 0, DMARead|DMAWrite); err != nil {
				t.Fatal(err)
			}
			local := make([]byte, 8192)
			copy(local, "hello")
			if err := c.MapBytes(0x40000000, local, DMARead|DMAWrite); err != nil {
				t.Fatal(err)
			}
			_ = c.Write(1, regSrc, 8, 0x40000000)
			_ = c.Write(1, regDst, 8, 0x11000)
			_ = c.Write(1, regLen, 4, 6000)
			if err := c.Write(1, regGo, 4, 2); err != nil {
				t.Fatal(err)
			}
			if err := d.lastDMA(); err != nil {
				t.Fatal(err)
			}
			await(t, ev)
			var p [5]byte
			if _, err := unix.Pread(m, p[:], 0x1000); err != nil || string(p[:]) != "hello" {
				t.Fatalf("%q %v", p[:], err)
			}
			if err := c.Reset(); err != nil {
				t.Fatal(err)
			}
			c.Close()
			if _, err := c.Read(0, 0, 4); !errors.Is(err, ErrGone) {
				t.Fatal(err)
			}
		}
	})
	if after := fdsAfter(t, before); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestServeAndRedial(t *testing.T) {
	s, _ := newServer(t)
	path := filepath.Join(t.TempDir(), "dev.sock")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, path) }()
	c, err := Redial(ctx, path, Options{}, func(c *Client) error { return c.SetCommand(CommandMemory) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(ctx, path, Options{}); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("second client: %v", err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	if err := c.Err(); !errors.Is(err, ErrGone) {
		t.Fatal(err)
	}
	c.Close()
}
