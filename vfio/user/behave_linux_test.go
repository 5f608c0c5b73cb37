package user

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

const both = DMARead | DMAWrite

func setUp(t testing.TB, o Options, change ...func(*Config)) (*Server, *testDevice, *Client) {
	t.Helper()
	s, d := newServer(t, change...)
	c := newTestClient(t, s, o)
	if err := c.SetCommand(CommandMemory | CommandMaster); err != nil {
		t.Fatal(err)
	}
	return s, d, c
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestAccessSplit: an access that is not a single aligned one reaches the device as several
// aligned ones.
func TestAccessSplit(t *testing.T) {
	_, d, c := setUp(t, Options{})
	for _, x := range []struct {
		offset uint64
		n      int
		want   []access // offset and size
	}{
		{0, 1, []access{{offset: 0, size: 1}}},
		{6, 2, []access{{offset: 6, size: 2}}},
		{8, 8, []access{{offset: 8, size: 8}}},
		{4, 8, []access{{offset: 4, size: 4}, {offset: 8, size: 4}}},
		{1, 4, []access{{offset: 1, size: 1}, {offset: 2, size: 2}, {offset: 4, size: 1}}},
		{3, 13, []access{{offset: 3, size: 1}, {offset: 4, size: 4}, {offset: 8, size: 8}}},
		{4095, 1, []access{{offset: 4095, size: 1}}},
		{16, 0, nil},
	} {
		for _, write := range []bool{true, false} {
			d.taken()
			p := make([]byte, x.n)
			for i := range p {
				p[i] = byte(0x10 + i)
			}
			if write {
				ok(t, c.WriteRegion(0, x.offset, p))
			} else {
				q := make([]byte, x.n)
				ok(t, c.ReadRegion(0, x.offset, q))
				if !bytes.Equal(q, p) {
					t.Errorf("read %x, want %x", q, p)
				}
			}
			got := d.taken()
			if len(got) != len(x.want) {
				t.Fatalf("%d bytes at %d: %+v", x.n, x.offset, got)
			}
			for i, a := range got {
				if a.write != write || a.offset != x.want[i].offset || a.size != x.want[i].size {
					t.Errorf("%d bytes at %d: %+v", x.n, x.offset, got)
				}
			}
		}
	}
	// An access of no bytes is answered.
	c.mu.Lock()
	err := c.readChunk(0, 4096, nil)
	c.mu.Unlock()
	ok(t, err)
}

// TestLimits: transfers work with the smallest permitted messages, in both directions.
func TestLimits(t *testing.T) {
	_, d, c := setUp(t, Options{MaxTransfer: 24, NoTwin: true}, func(c *Config) { c.MaxTransfer = 32 })
	p := bytes.Repeat([]byte("0123456789"), 100)
	ok(t, c.WriteRegion(0, 8, p))
	q := make([]byte, len(p))
	ok(t, c.ReadRegion(0, 8, q))
	if !bytes.Equal(p, q) {
		t.Error("region data differ")
	}
	n, err := c.WriteMulti([]Write{{0, 0, 4, [8]byte{1}}, {4, 0, 4, [8]byte{2}}, {8, 0, 8, [8]byte{3}}})
	if n != 3 || err != nil {
		t.Errorf("%d writes, %v", n, err)
	}
	b := make([]byte, 8192)
	copy(b, p)
	ok(t, c.MapBytes(0, b, both))
	doCopy(t, c, 0, 4096, 1000, 0)
	ok(t, d.lastDMA())
	_, err = c.Read(0, 0, 4) // the server's earlier requests are visible
	ok(t, err)
	if !bytes.Equal(b[4096:5096], b[:1000]) {
		t.Error("DMA data differ")
	}
}

func doCopy(t testing.TB, c *Client, src, dst uint64, n, vector int) {
	t.Helper()
	ok(t, c.Write(1, regSrc, 8, src))
	ok(t, c.Write(1, regDst, 8, dst))
	ok(t, c.Write(1, regLen, 4, uint64(n)))
	ok(t, c.Write(1, regGo, 4, uint64(vector)))
}

// TestCommandRegister: without memory decode no BAR answers; without bus mastering the device
// sends no DMA and no interrupt.
func TestCommandRegister(t *testing.T) {
	s, d, c := setUp(t, Options{})
	ev := eventfd(t)
	ok(t, c.SetEventFDs(IRQMSIX, 0, IRQActionTrigger, []int{ev}))
	ok(t, c.MapDMA(0, 8192, memfd(t, 8192, 0), 0, both))
	doCopy(t, c, 0, 4096, 64, 0)
	if d.lastDMA() != nil || count(t, ev) != 1 {
		t.Fatal("the device does not work with everything on")
	}
	ok(t, c.SetCommand(CommandMemory))
	doCopy(t, c, 0, 4096, 64, 0)
	if err := d.lastDMA(); !errors.Is(err, ErrBusMaster) {
		t.Errorf("DMA without bus mastering: %v", err)
	}
	if n := count(t, ev); n != 0 {
		t.Errorf("%d interrupts without bus mastering", n)
	}
	if v, err := c.Read(4, 0x800, 8); v != 1 || err != nil {
		t.Errorf("pending bits %#x, %v", v, err)
	}
	ok(t, c.SetCommand(CommandMaster))
	if n := count(t, ev); n != 1 {
		t.Errorf("%d interrupts when bus mastering is turned on", n)
	}
	d.taken()
	if _, err := c.Read(0, 0, 4); !errors.Is(err, unix.EIO) {
		t.Errorf("BAR 0 without memory decode: %v", err)
	}
	if _, err := c.Read(4, 0, 4); !errors.Is(err, unix.EIO) {
		t.Errorf("MSI-X table without memory decode: %v", err)
	}
	if _, err := c.WriteMulti([]Write{{0, 0, 4, [8]byte{1}}}); !errors.Is(err, unix.EIO) {
		t.Errorf("several writes without memory decode: %v", err)
	}
	if a := d.taken(); len(a) != 0 {
		t.Errorf("the device saw %+v", a)
	}
	// One message may enable memory decode and use it.
	n, err := c.WriteMulti([]Write{{cfgCommand, RegionConfig, 2, [8]byte{6}}, {0, 0, 4, [8]byte{1}}})
	if n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	// D3hot disables both.
	ok(t, c.Write(RegionConfig, pmControl, 2, 3))
	if _, err := c.Read(0, 0, 4); !errors.Is(err, unix.EIO) {
		t.Errorf("BAR 0 in D3hot: %v", err)
	}
	if err := s.DMA().Read(0, make([]byte, 8)); !errors.Is(err, ErrBusMaster) {
		t.Errorf("DMA in D3hot: %v", err)
	}
	ok(t, c.Write(RegionConfig, pmControl, 2, 0))
	ok(t, s.DMA().Read(0, make([]byte, 8)))
}

func TestReset(t *testing.T) {
	s, d, c := setUp(t, Options{})
	ev := eventfd(t)
	ok(t, c.SetEventFDs(IRQMSIX, 1, IRQActionTrigger, []int{ev}))
	ok(t, c.MapDMA(0, 4096, memfd(t, 4096, 0), 0, both))
	ok(t, c.Write(RegionConfig, cfgBAR0, 4, 0xfebd0000))
	ok(t, c.Write(4, 0x10, 8, 0x1000)) // vector 1's address
	ok(t, s.Interrupt(0))              // pending: it has no eventfd
	ok(t, c.Write(RegionConfig, expDevControl, 2, 0x8000))
	if k := d.resetKinds(); !slices.Equal(k, []ResetKind{ResetFLR}) {
		t.Fatalf("resets %v", k)
	}
	for _, r := range []struct {
		at   uint64
		want uint64
	}{{cfgCommand, 0x100000}, {cfgBAR0, 0}} {
		if v, err := c.Read(RegionConfig, r.at, 4); v != r.want || err != nil {
			t.Errorf("%#x after FLR: %#x, %v", r.at, v, err)
		}
	}
	ok(t, c.Reset())
	if k := d.resetKinds(); !slices.Equal(k, []ResetKind{ResetFLR, ResetCommand}) {
		t.Fatalf("resets %v", k)
	}
	if v, err := c.Read(4, 0x800, 8); v != 0 || err != nil {
		t.Errorf("pending bits after reset: %#x, %v", v, err)
	}
	if v, err := c.Read(4, 0x10, 8); v != 0 || err != nil {
		t.Errorf("vector table after reset: %#x, %v", v, err)
	}
	// Eventfds and mappings survive the reset.
	ok(t, s.Interrupt(1))
	if n := count(t, ev); n != 1 {
		t.Errorf("%d interrupts after reset", n)
	}
	ok(t, s.DMA().Read(0, make([]byte, 8)))
}

func TestInterrupts(t *testing.T) {
	s, _, c := setUp(t, Options{MaxFDs: 2})
	evs := make([]int, testVectors)
	for i := range evs {
		evs[i] = eventfd(t)
	}
	want := func(step string, n ...uint64) {
		t.Helper()
		for i, w := range n {
			if got := count(t, evs[i]); got != w {
				t.Errorf("%s: vector %d: %d events, want %d", step, i, got, w)
			}
		}
	}
	ok(t, s.Interrupt(2)) // before anybody listens
	// More than fit one message, with a gap.
	fds := append([]int(nil), evs...)
	fds[5] = -1
	ok(t, c.SetEventFDs(IRQMSIX, 0, IRQActionTrigger, fds))
	want("assigned", 0, 0, 1, 0, 0, 0)
	for v := range testVectors {
		ok(t, s.Interrupt(v))
	}
	want("raised", 1, 1, 1, 1, 1, 0, 1, 1)
	if err := s.Interrupt(testVectors); err == nil {
		t.Error("a nonexistent vector was raised")
	}
	if err := s.Interrupt(-1); err == nil {
		t.Error("vector -1 was raised")
	}

	masked, unmasked := eventfd(t), eventfd(t)
	ok(t, c.SetEventFDs(IRQMSIX, 0, IRQActionMask, []int{masked}))
	ok(t, c.SetEventFDs(IRQMSIX, 0, IRQActionUnmask, []int{unmasked}))
	ok(t, c.ActIRQs(IRQMSIX, 0, 2, IRQActionMask))
	ok(t, c.ActIRQs(IRQMSIX, 0, 1, IRQActionMask)) // no change, no event
	if count(t, masked) != 1 || count(t, unmasked) != 0 {
		t.Error("masking was not signalled once")
	}
	ok(t, s.Interrupt(0))
	ok(t, s.Interrupt(0))
	ok(t, s.Interrupt(1))
	want("masked", 0, 0)
	if v, err := c.Read(4, 0x800, 4); v != 0x23 || err != nil {
		t.Errorf("pending bits %#x, %v", v, err)
	}
	ok(t, c.ActIRQsWhere(IRQMSIX, 0, IRQActionUnmask, []bool{true, false}))
	want("one unmasked", 1, 0)
	if count(t, unmasked) != 1 {
		t.Error("unmasking was not signalled")
	}
	ok(t, c.Write(4, 0x1c, 4, 0)) // by the table
	want("unmasked by the table", 0, 1)
	ok(t, c.Write(4, 0x0c, 4, 1))
	if count(t, masked) != 1 {
		t.Error("masking by the table was not signalled")
	}
	ok(t, c.Write(4, 0x0c, 4, 0))

	ok(t, c.Write(RegionConfig, msixControl, 2, msixEnable|msixFuncMask))
	ok(t, s.Interrupt(3))
	want("function masked", 0, 0, 0, 0)
	ok(t, c.Write(RegionConfig, msixControl, 2, msixEnable))
	want("function unmasked", 0, 0, 0, 1)

	// The client can trigger the interrupts itself, masked or not.
	ok(t, c.ActIRQs(IRQMSIX, 6, 1, IRQActionMask))
	ok(t, c.ActIRQs(IRQMSIX, 5, 3, IRQActionTrigger))
	ok(t, c.ActIRQsWhere(IRQMSIX, 6, IRQActionTrigger, []bool{false, true}))
	want("triggered by the client", 0, 0, 0, 0, 0, 0, 1, 2)

	// Replace, remove and disable eventfds.
	other := eventfd(t)
	ok(t, c.SetEventFDs(IRQMSIX, 4, IRQActionTrigger, []int{other}))
	ok(t, s.Interrupt(4))
	if count(t, other) != 1 {
		t.Error("the new eventfd is not used")
	}
	ok(t, c.SetEventFDs(IRQMSIX, 7, IRQActionTrigger, []int{-1}))
	ok(t, s.Interrupt(7))
	ok(t, c.DisableIRQs(IRQMSIX))
	ok(t, s.Interrupt(3))
	want("disabled", 0, 0, 0, 0, 0, 0, 0, 0)
	for _, index := range []int{IRQINTx, IRQMSI, IRQErr, IRQReq} {
		ok(t, c.DisableIRQs(index))
	}

	for _, x := range []struct {
		index int
		f     func()
	}{{IRQErr, s.SignalError}, {IRQReq, s.RequestRelease}} {
		x.f() // nobody listens
		ok(t, c.SetEventFDs(x.index, 0, IRQActionTrigger, []int{evs[0]}))
		x.f()
		want("error or request", 1)
		ok(t, c.DisableIRQs(x.index))
		x.f()
		want("error or request disabled", 0)
		if i, err := c.IRQ(x.index); err != nil || i.Count != 1 || i.Flags != IRQEventFD {
			t.Errorf("%+v, %v", i, err)
		}
	}
}

// TestStuckEventFD: a client that fills its eventfd and makes writes to it block does not block
// the device and is disconnected.
func TestStuckEventFD(t *testing.T) {
	s, _, c := setUp(t, Options{})
	ev, err := unix.Eventfd(0, unix.EFD_CLOEXEC) // blocking
	ok(t, err)
	defer func() { _ = unix.Close(ev) }()
	_, err = unix.Write(ev, order.AppendUint64(nil, ^uint64(0)-1)) // full
	ok(t, err)
	ok(t, c.SetEventFDs(IRQMSIX, 0, IRQActionTrigger, []int{ev}))
	ok(t, s.Interrupt(0)) // hangs here if it does not work
	<-c.Done()
}

// TestDisconnectAnywhere ends the stream of a busy client after every byte.
func TestDisconnectAnywhere(t *testing.T) {
	s, d := newServer(t)
	fd, ev := memfd(t, 64<<10, 0), eventfd(t)
	type part struct {
		b  []byte
		fd []int
	}
	parts := []part{
		{raw(1, CmdVersion, 0, hello(`{"capabilities":{"twin_socket":{"supported":true},"max_msg_fds":8}}`)), nil},
		{raw(2, CmdRegionWrite, 0, le(uint64(4), 7, 2, le(uint16(6)))), nil},
		{raw(3, CmdDMAMap, 0, le(32, 3, uint64(0), uint64(0), uint64(8192))), []int{fd}},
		{raw(4, CmdSetIRQs, 0, le(20, 0x24, 2, 0, 2)), []int{ev, ev}},
		{raw(5, CmdRegionIOFDs, 0, le(512, 0, 1, 0)), nil},
		{raw(6, CmdRegionWrite, 0, le(uint64(regLen), 1, 4, 64)), nil},
		{raw(7, CmdRegionWrite, 0, le(uint64(regGo), 1, 4, 0)), nil},
	}
	total := 0
	for _, p := range parts {
		total += len(p.b)
	}
	before := openFDs(t)
	for cut := range total + 1 {
		r := rawConnect(t, s)
		left := cut
		for _, p := range parts {
			if n := min(left, len(p.b)); n > 0 {
				r.send(p.b[:n], p.fd...)
				left -= n
			}
		}
		r.sock.close()
		if err := <-r.ended; err == nil {
			t.Fatal("no reason for the end")
		}
		if after := fdsAfter(t, before); after != before {
			t.Fatalf("cut at %d: %d descriptors before, %d after", cut, before, after)
		}
		if m, f := s.DMA().Mappings(); m != 0 || f != 0 {
			t.Fatalf("cut at %d: %d mappings of %d files left", cut, m, f)
		}
	}
	if d.joined == 0 || d.joined != d.left {
		t.Errorf("%d connected, %d disconnected", d.joined, d.left)
	}
	if len(d.resetKinds()) != 0 {
		t.Error("a disconnection reset the device")
	}
}

// TestReconnect: the device, its configuration space and its pending interrupts survive a client;
// the client's memory and eventfds do not.
func TestReconnect(t *testing.T) {
	s, _ := newServer(t)
	c := newTestClient(t, s, Options{})
	ok(t, c.SetCommand(CommandMemory|CommandMaster))
	ev := eventfd(t)
	ok(t, c.SetEventFDs(IRQMSIX, 0, IRQActionTrigger, []int{ev}))
	ok(t, c.MapDMA(0, 4096, memfd(t, 4096, 0), 0, both))
	ok(t, c.Write(0, 0x40, 4, 0xfeed))
	c.Close()
	var c2 *Client
	for { // until the server has noticed
		ses := connect(t, s)
		var err error
		if c2, err = newClient(context.Background(), ses.fd, Options{}); err == nil {
			defer func() { c2.Close(); <-ses.ended }()
			break
		}
		<-ses.ended
	}
	if v, err := c2.Read(0, 0x40, 4); v != 0xfeed || err != nil {
		t.Errorf("register %#x, %v", v, err)
	}
	if err := s.DMA().Read(0, make([]byte, 4)); !errors.Is(err, ErrUnmapped) {
		t.Errorf("the old client's memory: %v", err)
	}
	ok(t, s.Interrupt(0))
	if count(t, ev) != 0 {
		t.Error("the old client's eventfd was signalled")
	}
	ok(t, c2.SetEventFDs(IRQMSIX, 0, IRQActionTrigger, []int{ev}))
	if count(t, ev) != 1 {
		t.Error("an interrupt between two clients is lost")
	}
}

// TestNoClient: without a client a device's accesses fail and have no other effect.
func TestNoClient(t *testing.T) {
	s, _ := newServer(t)
	s.dma.master.Store(true)
	if err := s.DMA().Write(0, make([]byte, 4)); !errors.Is(err, ErrGone) {
		t.Errorf("DMA: %v", err)
	}
	ok(t, s.Interrupt(0))
	if err := s.ServeConn(-1); err == nil {
		t.Error("served nothing")
	}
	s.Close()
}

// TestMmap: each side sees the other's stores to a mapped area. Both sides refuse a file that
// could shrink.
func TestMmap(t *testing.T) {
	_, d, c := setUp(t, Options{})
	ms, err := c.Map(2)
	ok(t, err)
	if len(ms) != 2 || ms[0].Area != (Area{4096, 4096}) || ms[1].Area != (Area{3 * 4096, 4096}) {
		t.Fatalf("%+v", ms)
	}
	copy(ms[1].Bytes, "doorbell")
	var p [8]byte
	_, err = unix.Pread(d.bar2, p[:], 4096+3*4096)
	ok(t, err)
	if string(p[:]) != "doorbell" {
		t.Errorf("the device finds %q", p)
	}
	ok(t, Unmap(ms))
	if ms, err := c.Map(0); ms != nil || err != nil {
		t.Errorf("BAR 0: %v, %v", ms, err)
	}
	cfg := testConfig(d)
	cfg.BARs[2].FD = memfd(t, 6*4096, 0)
	if _, err := New(cfg, d); err == nil {
		t.Error("a memfd without a seal was accepted")
	}
	cfg.BARs[2].FD = memfd(t, 4*4096, unix.F_SEAL_SHRINK)
	if _, err := New(cfg, d); err == nil {
		t.Error("a memfd that ends before the areas was accepted")
	}
	cfg.BARs[2].FD = eventfd(t)
	if _, err := New(cfg, d); err == nil {
		t.Error("an eventfd was accepted as a memfd")
	}
}

// TestIOEvents: a write through an eventfd reaches the device like a message.
func TestIOEvents(t *testing.T) {
	_, d, c := setUp(t, Options{})
	ev := eventfd(t)
	ok(t, c.SetEventFDs(IRQMSIX, 3, IRQActionTrigger, []int{ev}))
	subs, fds, err := c.RegionIOFDs(1)
	ok(t, err)
	defer closeFDs(fds)
	if len(subs) != 2 || len(fds) != 2 || subs[0].Offset != regGo || subs[0].Size != 4 || subs[0].Data != 3 || subs[0].Flags != FlagDataMatch || subs[1].FD != fds[1] {
		t.Fatalf("%+v, %v", subs, fds)
	}
	d.taken()
	_, err = unix.Write(subs[0].FD, eventfdOne)
	ok(t, err)
	await(t, ev)
	if a := d.taken(); len(a) != 1 || a[0] != (access{true, 1, regGo, 4, 3}) {
		t.Errorf("%+v", a)
	}
	subs, fds, err = c.RegionIOFDs(0)
	if len(subs)+len(fds) != 0 || err != nil {
		t.Errorf("BAR 0: %v %v %v", subs, fds, err)
	}
	// A client that accepts one descriptor cannot get two.
	s, _ := newServer(t)
	c = newTestClient(t, s, Options{MaxFDs: 1})
	if _, _, err := c.RegionIOFDs(1); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
}

// TestOwner: with Run every call of the device happens on the owner's side, also during DMA, whether
// the owner lends itself to the caller or calls it on its own goroutine; the race detector checks it.
func TestOwner(t *testing.T) {
	for _, noTwin := range []bool{false, true} {
		var mu sync.Mutex // the owner
		var inline, posted atomic.Int64
		posts := make(chan func())
		stop := make(chan struct{})
		go func() {
			for f := range posts {
				mu.Lock()
				f()
				mu.Unlock()
			}
			close(stop)
		}()
		s, d, c := setUp(t, Options{NoTwin: noTwin}, func(c *Config) {
			lend := func(f func()) bool {
				if !mu.TryLock() {
					return false
				}
				defer mu.Unlock()
				f()
				inline.Add(1)
				return true
			}
			c.Run = func(f func()) {
				if lend(f) {
					return
				}
				done := make(chan struct{})
				posts <- func() { f(); close(done) }
				<-done
				posted.Add(1)
			}
		})
		b := make([]byte, 64<<10)
		ok(t, c.MapBytes(0, b, both))
		var wg sync.WaitGroup
		wg.Go(func() { // the device's own work, on none of the owner's goroutines
			for range 100 {
				if err := s.DMA().Read(0, make([]byte, 5000)); err != nil {
					t.Error(err)
				}
			}
		})
		for range 100 {
			doCopy(t, c, 0, 32768, 9000, 1)
		}
		wg.Wait()
		ok(t, d.lastDMA())
		c.Close()
		s.Close()
		if inline.Load() == 0 {
			t.Error("nothing ran inline")
		}
		close(posts)
		<-stop
	}
}

// TestReadAllocates: a register read allocates nothing, on either side.
func TestReadAllocates(t *testing.T) {
	s, err := New(func() Config { c := testConfig(&testDevice{}); c.BARs[2] = BAR{}; return c }(), benchDevice{&testDevice{}})
	ok(t, err)
	defer s.Close()
	c := newTestClient(t, s, Options{})
	ok(t, c.SetCommand(CommandMemory))
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := c.Read(0, 64, 4); err != nil {
			t.Error(err)
		}
	}); n >= 1 {
		t.Errorf("%v allocations a read", n)
	}
}

func TestIOEventRefusals(t *testing.T) {
	d := &testDevice{}
	for _, ev := range []IOEvent{
		{BAR: 6, Size: 4}, {BAR: -1, Size: 4}, {BAR: 3, Size: 4}, {BAR: 0, Offset: 4096, Size: 4}, {BAR: 0, Offset: 2, Size: 4},
		{BAR: 0, Size: 0}, {BAR: 0, Size: 3}, {BAR: 0, Size: 16}, {BAR: 0, Offset: ^uint64(7), Size: 8},
	} {
		cfg := testConfig(d)
		cfg.BARs[2] = BAR{}
		cfg.IOEvents = []IOEvent{ev}
		if s, err := New(cfg, d); err == nil {
			s.Close()
			t.Errorf("%+v was accepted", ev)
		}
	}
}

// TestNoVersionData: a VERSION without its JSON text is valid, and so is one with unknown
// members.
func TestNoVersionData(t *testing.T) {
	s, _ := newServer(t)
	for _, payload := range [][]byte{
		le(uint16(0), uint16(0)), le(uint16(0), uint16(1), "\x00"), le(uint16(0), uint16(9), "{}\x00"),
		hello(`{"capabilities":{"migration":{"pgsize":4096},"max_msg_fds":100000},"more":[1]}`),
	} {
		r := rawConnect(t, s)
		m := r.must(CmdVersion, payload)
		v, err := DecodeVersion(m.body)
		if err != nil || v.Major != 0 || v.Minor > Minor || v.Minor > order.Uint16(payload[2:]) || v.Capabilities.Twin != nil {
			t.Errorf("%+v, %v", v, err)
		}
		if err := r.close(); !errors.Is(err, ErrGone) {
			t.Error(err)
		}
	}
}

// TestListen: a dead socket is replaced; a live one and a regular file are not.
func TestListen(t *testing.T) {
	dir := t.TempDir()
	dead, err := listen(dir + "/a")
	ok(t, err)
	if _, err := listen(dir + "/a"); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a live one: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir+"/a", &st); err != nil || st.Mode&0o777 != 0o600 {
		t.Errorf("mode %o, %v", st.Mode, err)
	}
	closeFDs([]int{dead})
	again, err := listen(dir + "/a")
	ok(t, err)
	closeFDs([]int{again})
	file := memfd(t, 0, 0)
	ok(t, unix.Symlink("/proc/self/fd/"+itoa(file), dir+"/b"))
	ok(t, os.WriteFile(dir+"/c", []byte("precious"), 0o600))
	for _, path := range []string{dir + "/b", dir + "/c"} {
		if fd, err := listen(path); err == nil {
			closeFDs([]int{fd})
			t.Errorf("%s was replaced", path)
		}
	}
}
