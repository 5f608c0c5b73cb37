package rdma

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/space/uffd"
)

func mapped(t *testing.T, pages int, prot int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, pages*device.PageSize, prot, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

func protect(t *testing.T, b []byte, prot int) {
	t.Helper()
	if err := unix.Mprotect(b, prot); err != nil {
		t.Fatal(err)
	}
}

// resident returns which pages of b are present, by mincore(2).
func resident(t *testing.T, b []byte) []bool {
	t.Helper()
	vec := make([]byte, len(b)/device.PageSize)
	if err := mincore(b, vec); err != nil {
		t.Fatal(err)
	}
	r := make([]bool, len(vec))
	for i, v := range vec {
		r[i] = v&1 != 0
	}
	return r
}

// TestTouch sends the page-fault goroutine real netlink messages. It pages in and sends a request
// for retransmission, with the fail bit if it cannot page in.
func TestTouch(t *testing.T) {
	f, err := newFake()
	if err != nil {
		t.Fatal(err)
	}
	e := attachTo(t, startFake(t, f))
	const rw = unix.PROT_READ | unix.PROT_WRITE
	src := pattern(100)

	absent := mapped(t, 4, rw)
	readonly := mapped(t, 1, unix.PROT_READ)
	none := mapped(t, 2, unix.PROT_NONE)
	holed := mapped(t, 4, rw)
	protect(t, holed[2*device.PageSize:3*device.PageSize], unix.PROT_NONE)
	// Nothing is mapped there by default; at an unmapped address the runtime might map memory.
	const goneVA = device.VA(0x6000_0000_0000)

	dst := func(b []byte, pages int, node device.NodeID) WriteRequest {
		r := WriteRequest{Src: src, Dst: remote(e, t, b, node), Notify: &Notification{VA: VAOf(absent) + 3*device.PageSize, First: uint64(pages)}}
		return r
	}
	source := func(va device.VA) WriteRequest {
		return WriteRequest{SrcVA: va, Size: 100, Dst: remote(e, t, make([]byte, 100), toSrcFault)}
	}
	for _, tt := range []struct {
		name string
		req  WriteRequest
		fail bool
	}{
		{"destination absent, one page", dst(absent, 1, toFault), false},
		{"destination absent, range into a hole", dst(holed, 4, toFault), false},
		{"destination present", dst(absent, 1, toFault), false},
		{"destination read-only", dst(readonly, 1, toFault), true},
		{"destination PROT_NONE", dst(none, 2, toFault), true},
		{"destination unmapped", WriteRequest{Src: src, Dst: Remote{Node: toFault, VA: goneVA, Len: 100}}, true},
		{"destination in the kernel's half", WriteRequest{Src: src, Dst: Remote{Node: toFault, VA: 1 << 47, Len: 100}}, true},
		{"source read-only", source(VAOf(readonly)), false},
		{"source PROT_NONE", source(VAOf(none)), true},
		{"source unmapped", source(goneVA), true},
	} {
		before := e.Stats()
		tr := mustWrite(t, e, tt.req)
		err := tr.Wait(t.Context())
		if r := <-f.rapfs; r.Fail != tt.fail {
			t.Errorf("%s: RAPF %+v", tt.name, r)
		}
		if tt.fail != errors.Is(err, ErrAddress) || !tt.fail && err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		s := e.Stats()
		if s.NumPageFaults != before.NumPageFaults+1 || (s.NumFailedResolutions != before.NumFailedResolutions) != tt.fail {
			t.Errorf("%s: %+v after %+v", tt.name, s, before)
		}
	}
	if !bytes.Equal(absent[:100], src) || !bytes.Equal(holed[:100], src) {
		t.Error("not what was written")
	}
	// The range ends at the hole, and only the first page decides.
	if r := resident(t, holed); !r[0] || !r[1] || r[3] {
		t.Errorf("resident pages %v, want the first two", r)
	}
	// A source fault without a transaction is paged in and not answered.
	quiet := mapped(t, 1, rw)
	if err := mustWrite(t, e, WriteRequest{SrcVA: VAOf(quiet), Size: 8, Dst: remote(e, t, make([]byte, 8), toNoFIFO)}).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := mustWrite(t, e, source(VAOf(quiet))).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-f.rapfs // of the second fault; they are served in order
	select {
	case r := <-f.rapfs:
		t.Errorf("RAPF %+v for a fault without a transaction", r)
	default:
	}
}

// TestTouchChangesNothing: paging in writable keeps the page's bytes.
func TestTouchChangesNothing(t *testing.T) {
	b := mapped(t, 2, unix.PROT_READ|unix.PROT_WRITE)
	copy(b, "here before")
	if err := populate(VAOf(b), 2, true); err != nil {
		t.Fatal(err)
	}
	if string(b[:11]) != "here before" || !resident(t, b)[1] {
		t.Error("populate changed a byte or left a page out")
	}
}

// TestForgedFaults: messages of another sender are dropped and counted; the genuine one after them
// is served.
func TestForgedFaults(t *testing.T) {
	f, err := newFake()
	if err != nil {
		t.Fatal(err)
	}
	f.open = true
	e := attachTo(t, startFake(t, f))
	port := <-f.ports
	forger, err := netlink.OpenSender()
	if err != nil {
		t.Fatal(err)
	}
	defer forger.Close()
	b := mapped(t, 2, unix.PROT_READ|unix.PROT_WRITE)
	for range 3 {
		if err := forger.Send(port, netlink.Fault{VA: VAOf(b), PDID: fakePDID, Write: true, Pages: 1}); err != nil {
			t.Fatal(err)
		}
	}
	tr := mustWrite(t, e, WriteRequest{Src: pattern(9), Dst: remote(e, t, b[device.PageSize:], toFault)})
	if err := tr.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := e.Stats(); s.FaultsForged != 3 || s.NumPageFaults != 1 {
		t.Errorf("%+v, want 3 forged and 1 served", s)
	}
	if r := resident(t, b); r[0] || !r[1] {
		t.Errorf("resident %v: a forged message brought a page in", r)
	}
}

// TestConnectedSocket: the socket as pfd creates it accepts no message of others.
func TestConnectedSocket(t *testing.T) {
	f, err := newFake()
	if err != nil {
		t.Fatal(err)
	}
	attachTo(t, startFake(t, f))
	forger, err := netlink.OpenSender()
	if err != nil {
		t.Fatal(err)
	}
	defer forger.Close()
	if err := forger.Send(<-f.ports, netlink.Fault{Pages: 1}); !errors.Is(err, netlink.ErrNoReceiver) {
		t.Errorf("a forger's send: %v, want ErrNoReceiver", err)
	}
}

// TestFaultSendBusy: the page-fault goroutine waits for its packetizer channel and blocks nothing
// else.
func TestFaultSendBusy(t *testing.T) {
	f, err := newFake()
	if err != nil {
		t.Fatal(err)
	}
	e := attachTo(t, startFake(t, f))
	f.deaf.Store(true)
	b := mapped(t, 1, unix.PROT_READ|unix.PROT_WRITE)
	port := <-f.ports
	for range 3 {
		f.sendMu.Lock()
		err := f.sender.Send(port, netlink.Fault{VA: VAOf(b), PDID: fakePDID, Write: true, Pages: 1})
		f.sendMu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
	}
	for e.Stats().NumPageFaults < 2 { // the second finds the channel busy
	}
	if r, over := e.pages.Ended(); over {
		t.Fatal(r)
	}
	if e.pages.SendStatus(faultSend) != device.PktzBusy {
		t.Error("the channel is free")
	}
	f.deaf.Store(false)
	e.mu.Lock()
	e.kickLocked()
	e.mu.Unlock()
	for range 3 {
		<-f.rapfs
	}
}

// TestCloseWithoutThePage: the page-fault goroutine sleeps in memory that nobody serves, and Close
// does not wait for it for ever.
func TestCloseWithoutThePage(t *testing.T) {
	fd, _, err := uffd.Open(false)
	if err != nil {
		t.Skip(err)
	}
	hung := mapped(t, 1, unix.PROT_READ|unix.PROT_WRITE)
	if err := uffd.Intercept(fd, VAOf(hung), uint64(len(hung))); err != nil {
		t.Fatal(err)
	}
	e := attachTo(t, startFake(t, nil))
	tr := mustWrite(t, e, WriteRequest{Src: pattern(8), Dst: remote(e, t, hung, toFault)})
	for tr.Poll() != Paused || e.Stats().NumPageFaults == 0 {
		time.Sleep(time.Millisecond)
	}
	closed := make(chan error, 1)
	go func() { closed <- e.Close() }()
	select {
	case err = <-closed:
	case <-time.After(5 * closeTimeout):
		t.Error("Close waits for the page")
	}
	if err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := unix.Close(fd); err != nil { // the page arrives
		t.Fatal(err)
	}
	e.workers.Wait()
}

// TestPageThatNeverComes: page-fault goroutines sleep in memory that nobody serves, and pfd asks
// for it repeatedly. Other absent memory is still paged in, and these pages are when they are
// served.
func TestPageThatNeverComes(t *testing.T) {
	fd, _, err := uffd.Open(false)
	if err != nil {
		t.Skip(err)
	}
	const pages = 4 // nobody serves them
	beside := mapped(t, pages+2*mostSleeping, unix.PROT_READ|unix.PROT_WRITE)
	hung := beside[:pages*device.PageSize]
	if err := uffd.Intercept(fd, VAOf(hung), uint64(len(hung))); err != nil {
		t.Fatal(err)
	}
	f, err := newFake()
	if err != nil {
		t.Fatal(err)
	}
	e := attachTo(t, startFake(t, f))
	port := <-f.ports
	send := func(b []byte, transaction device.TransactionID) {
		f.sendMu.Lock()
		defer f.sendMu.Unlock()
		if err := f.sender.Send(port, netlink.Fault{VA: VAOf(b), PDID: fakePDID, Transaction: transaction, Write: true, Pages: 1}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 * mostSleeping {
		send(hung[i%pages*device.PageSize:], device.TransactionID(i%pages+1))
		other := device.TransactionID(100 + i)
		send(beside[(pages+i)*device.PageSize:], other)
		if m := <-f.rapfs; m.Transaction != other || m.Fail {
			t.Fatalf("%+v, want the page-in of transaction %d", m, other)
		}
	}
	e.sleeping.mu.Lock()
	if n := len(e.sleeping.pages); n != mostNear {
		t.Errorf("%d goroutines sleep, want %d", n, mostNear)
	}
	e.sleeping.mu.Unlock()
	if err := unix.Close(fd); err != nil { // the pages arrive
		t.Fatal(err)
	}
	for range mostNear {
		if m := <-f.rapfs; m.Transaction > mostNear {
			t.Errorf("%+v, want the page-ins of the first transactions", m)
		}
	}
}
