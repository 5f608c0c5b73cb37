package rdma

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/netlink"
)

// The destination node selects what the fake pfd does with a transfer.
const (
	toCopy     = 1 // copies, writes the completion words, completes
	toHold     = 2 // continues until it is aborted or released
	toPause    = 3 // the same, with three blocks paused
	toFail     = 4 // fails with the status in the destination PDID
	toFault    = 5 // sends a fault for the destination first
	toSrcFault = 6 // sends a fault for the source first
	toEnd      = 7 // ends the attachment
	toRelease  = 8 // completes all held transfers, and this one
	toNoFIFO   = 9 // a source fault without a transaction: no RAPF may follow
	homeNode   = 42
	fakePDID   = 0x1234
	fakeSlot   = 3
)

// fake is a pfd without a device: real sockets and memory, and an engine that acts as the firmware
// on the pages.
type fake struct {
	sender *netlink.Sender
	sendMu sync.Mutex // only one goroutine may use the sockets; tests have several attachments
	// open leaves the process's netlink socket unconnected, so that others can write to it.
	open bool
	// deaf stops the engines from reading anything.
	deaf atomic.Bool
	// caps is the node's CAPS. hold, if set, answers the process's requests in place of
	// attach.Conn.Hold.
	caps   uint64
	hold   func(ctx context.Context, c *attach.Conn) error
	rapfs  chan mailbox.RAPF
	ports  chan uint32 // of the processes' netlink sockets
	method pagein.Method
	errs   chan error
}

func newFake() (*fake, error) {
	s, err := netlink.OpenSender()
	if err != nil {
		return nil, err
	}
	return &fake{
		sender: s, method: pagein.Touch, rapfs: make(chan mailbox.RAPF, 64),
		ports: make(chan uint32, 64), errs: make(chan error, 64),
	}, nil
}

func (f *fake) serve(ctx context.Context, path string) error {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return err
	}
	return attach.Serve(ctx, l, func(ctx context.Context, c *attach.Conn) {
		if err := f.session(ctx, c); err != nil {
			f.errs <- err
		}
	})
}

func (f *fake) netlinkSocket() (int, uint32, error) {
	if !f.open {
		file, port, err := netlink.NewReceiver(f.sender.Port())
		if err != nil {
			return -1, 0, err
		}
		defer file.Close()
		fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		return fd, port, err
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_USERSOCK)
	if err != nil {
		return -1, 0, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return -1, 0, err
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return -1, 0, err
	}
	return fd, sa.(*unix.SockaddrNetlink).Pid, nil
}

func (f *fake) session(ctx context.Context, c *attach.Conn) error {
	hello, err := c.AwaitHello(ctx)
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return nil // waitForSocket, or the end of the test
	}
	if err != nil {
		return err
	}
	if hello.Node != homeNode {
		return c.Refuse(attach.CodeNoNode, attach.TypeHello, fmt.Sprintf("no node %d here: see exanetctl node show", hello.Node))
	}
	newMemory := attach.NewMemory
	if hello.Threads {
		newMemory = attach.NewThreadMemory
	}
	m, err := newMemory()
	if err != nil {
		return err
	}
	defer m.Close()
	nl, port, err := f.netlinkSocket()
	if err != nil {
		return err
	}
	defer unix.Close(nl)
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", c.Peer().PID), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(stop)
	if err := c.Offer(ctx, m, nl); err != nil {
		return err
	}
	if err := c.TakeDescriptors(); err != nil { // of shared memory
		return err
	}
	if err := c.Welcome(attach.Welcome{Grant: attach.Grant{
		Slot: fakeSlot, Interface: device.MailboxProcess + fakeSlot, VABits: 48, PDID: fakePDID, Generation: 1, Node: homeNode,
		Method: f.method, Policy: pagein.PIO, PFDPort: f.sender.Port(), OwnPort: port, PFDPID: uint32(os.Getpid()), Caps: f.caps,
	}}); err != nil {
		return err
	}
	f.ports <- port
	e := &engine{f: f, p: m.Pages, wake: m.WakeFD(), stop: stop, mem: mem, port: port, held: map[int]bool{}, paused: map[int]device.Descriptor{}}
	e.kicked = make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := e.run(); err != nil {
			f.errs <- err
		}
	})
	holdCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	var reason atomic.Uint32
	reason.Store(uint32(attach.ReasonClosed))
	wg.Go(func() {
		select {
		case <-e.kicked:
			reason.Store(uint32(attach.ReasonKicked))
			cancel()
		case <-holdCtx.Done():
		}
	})
	hold := f.hold
	if hold == nil {
		hold = func(ctx context.Context, c *attach.Conn) error { return c.Hold(ctx, attach.Handlers{}) }
	}
	if err := hold(holdCtx, c); err != nil && reason.Load() == uint32(attach.ReasonClosed) && ctx.Err() == nil {
		f.errs <- err
	}
	if ctx.Err() != nil {
		reason.Store(uint32(attach.ReasonShutdown))
	}
	cancel()
	if _, err := unix.Write(stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		return err
	}
	wg.Wait()
	m.End(attach.Reason(reason.Load()))
	_ = c.End(attach.Reason(reason.Load()), "") // the process may be gone
	return nil
}

// engine acts as the firmware for one attachment.
type engine struct {
	f          *fake
	p          *attach.Pages
	wake, stop int
	mem        *os.File
	port       uint32
	held       map[int]bool
	paused     map[int]device.Descriptor // wait for a RAPF with the channel for transaction
	kicked     chan struct{}             // closed to end the attachment
	mails      uint32                    // sent to the process
	asked      map[uint16]int            // how often each read was requested, by tag
	crossed    device.Descriptor         // the read to toCross
	once       sync.Once
}

func (e *engine) run() error {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(ep)
	for _, w := range []struct {
		fd    int
		flags uint32
	}{{e.wake, unix.EPOLLIN | unix.EPOLLET}, {e.stop, unix.EPOLLIN}} {
		if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, w.fd, &unix.EpollEvent{Events: w.flags, Fd: int32(w.fd)}); err != nil {
			return err
		}
	}
	last := uint32(0) // as in new memory: the process may have kicked already
	for {
		for k := e.p.Kicks(); k != last; k = e.p.Kicks() {
			last = k
			if !e.f.deaf.Load() {
				if err := e.serve(); err != nil {
					return err
				}
			}
		}
		e.p.SetAsleep(true)
		if e.p.Kicks() == last {
			var ev [2]unix.EpollEvent
			n, err := unix.EpollWait(ep, ev[:], -1)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			for i := range max(n, 0) {
				if int(ev[i].Fd) == e.stop {
					return nil
				}
			}
		}
		e.p.SetAsleep(false)
	}
}

func (e *engine) serve() error {
	if v := e.p.TakeDoorbell(); v != 0 {
		if err := e.ring(int(v - 1)); err != nil {
			return err
		}
	}
	for c := range device.PktzChannels {
		var m attach.Message
		if !e.p.TakeSend(c, &m) {
			continue
		}
		if m.Mailbox == device.MailboxRead {
			if err := e.read(c, &m); err != nil {
				return err
			}
			continue
		}
		e.p.SetPktzStatus(c, device.PktzFree)
		if m.N != 1 || m.Mailbox != device.MailboxRequest {
			return fmt.Errorf("a message of %d words to mailbox %d", m.N, m.Mailbox)
		}
		switch mailbox.OpcodeOf(m.Words[0]) {
		case mailbox.OpDoorbell:
			d, err := mailbox.DecodeDoorbell(m.Words[0])
			if err != nil {
				return err
			}
			if d.PDID != fakePDID || d.Slot() != fakeSlot || m.Node != homeNode {
				return fmt.Errorf("doorbell %+v to node %d", d, m.Node)
			}
			if err := e.ring(int(d.Channel) % device.ChannelsPerSlot); err != nil {
				return err
			}
		case mailbox.OpRAPF:
			r, err := mailbox.DecodeRAPF(m.Words[0])
			if err != nil {
				return err
			}
			e.rapf(m.Node, r)
		default:
			return fmt.Errorf("message %#x", m.Words[0])
		}
	}
	return nil
}

func (e *engine) done(ch int, done uint32, status uint8) {
	delete(e.held, ch)
	e.p.SetDone(ch, done, status, 0)
	e.p.Notify()
}

func (e *engine) ring(ch int) error {
	var d device.Descriptor
	e.p.Descriptor(ch, &d)
	if e.held[ch] {
		if d.Abort {
			e.done(ch, device.DoneFailed, device.StatusAborted)
		}
		return nil
	}
	if d.Done != device.DoneInitialized {
		return nil // announced twice
	}
	if d.Abort {
		e.done(ch, device.DoneFailed, device.StatusAborted)
		return nil
	}
	e.p.SetDone(ch, device.DoneOngoing, 0, 0)
	switch d.DstNode {
	case toCopy:
		return e.copy(ch, &d)
	case toHold:
		e.held[ch] = true
	case toPause:
		e.held[ch] = true
		e.p.SetDone(ch, device.DoneOngoing, 0, 3)
	case toFail:
		e.done(ch, device.DoneFailed, uint8(d.DstPDID))
	case toFault:
		return e.fault(ch, d, d.Dst, true)
	case toSrcFault:
		return e.fault(ch, d, d.Src, false)
	case toNoFIFO:
		if err := e.send(netlink.Fault{VA: d.Src.Page(), Pages: 1}); err != nil {
			return err
		}
		return e.copy(ch, &d)
	case toEnd:
		e.held[ch] = true
		e.once.Do(func() { close(e.kicked) })
	case toRelease:
		for h := range e.held {
			e.done(h, device.DoneCompleted, 0)
		}
		e.done(ch, device.DoneCompleted, 0)
	default:
		e.done(ch, device.DoneFailed, device.StatusDecode)
	}
	return nil
}

// fault pauses the transfer and asks the process for d.First pages.
func (e *engine) fault(ch int, d device.Descriptor, va device.VA, write bool) error {
	e.paused[ch] = d
	e.p.SetDone(ch, device.DoneOngoing, 0, 1)
	return e.send(netlink.Fault{
		Source: 0x155, Transaction: device.TransactionID(ch), Sequence: 0x3abc, VA: va.Page(), PDID: fakePDID,
		Write: write, Pages: max(uint16(d.First), 1),
	})
}

func (e *engine) send(f netlink.Fault) error {
	e.f.sendMu.Lock()
	defer e.f.sendMu.Unlock()
	return e.f.sender.Send(e.port, f)
}

func (e *engine) rapf(node device.NodeID, r mailbox.RAPF) {
	if node == 0x155 && r.Sequence == 0x3abc && r.PDID == fakePDID && r.Claimed == fakePDID {
		if d, ok := e.paused[int(r.Transaction)]; ok {
			delete(e.paused, int(r.Transaction))
			if r.Fail {
				e.done(int(r.Transaction), device.DoneFailed, device.StatusDecode)
			} else if err := e.copy(int(r.Transaction), &d); err != nil {
				e.f.errs <- err
			}
		}
	}
	e.f.rapfs <- r
}

func (e *engine) copy(ch int, d *device.Descriptor) error {
	b := make([]byte, d.Size)
	if _, err := e.mem.ReadAt(b, int64(d.Src)); err != nil {
		return err
	}
	if _, err := e.mem.WriteAt(b, int64(d.Dst)); err != nil {
		return err
	}
	if d.Notify != 0 {
		for i, v := range []uint64{d.First, d.Last} {
			if _, err := e.mem.WriteAt([]byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24), byte(v >> 32), byte(v >> 40), byte(v >> 48), byte(v >> 56)}, int64(d.Notify)+8*int64(i)); err != nil {
				return err
			}
		}
	}
	e.done(ch, device.DoneCompleted, 0)
	return nil
}

// startFake runs a fake pfd in this process until the test ends and returns its control socket's
// path (at which nothing listens).
func startFake(t *testing.T, f *fake) string {
	t.Helper()
	if f == nil {
		var err error
		if f, err = newFake(); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(t.TempDir(), "pfd.sock")
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	l := socket + attach.SocketSuffix
	go func() { served <- f.serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("fake pfd: %v", err)
		}
		f.sender.Close()
		for {
			select {
			case err := <-f.errs:
				t.Errorf("fake pfd: %v", err)
				continue
			default:
			}
			return
		}
	})
	waitForSocket(t, l)
	return socket
}

// waitForSocket waits until the file exists: the listener queues connections before Accept.
func waitForSocket(t *testing.T, path string) {
	t.Helper()
	for {
		c, err := net.Dial("unixpacket", path)
		if err == nil {
			c.Close()
			return
		}
	}
}

const fakeEnv = "RDMA_TEST_FAKE_PFD"

// TestMain lets the test binary be the other processes of the tests.
func TestMain(m *testing.M) {
	if path := os.Getenv(fakeEnv); path != "" {
		os.Exit(fakeMain(path))
	}
	if os.Getenv(pollEnv) != "" {
		os.Exit(pollMain())
	}
	if os.Getenv(StormEnv) != "" {
		os.Exit(StormMain())
	}
	os.Exit(m.Run())
}

// fakeMain runs a fake pfd until its standard input ends.
func fakeMain(path string) int {
	f, err := newFake()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	go func() {
		for {
			if c, err := net.Dial("unixpacket", path); err == nil {
				c.Close()
				fmt.Println("ready")
				return
			}
		}
	}()
	if err := f.serve(ctx, path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// startProcess runs a fake pfd in another process.
func startProcess(t *testing.T) (*exec.Cmd, string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "pfd.sock")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fakeEnv+"="+socket+attach.SocketSuffix)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // also after a kill
	})
	if s := bufio.NewScanner(out); !s.Scan() || s.Text() != "ready" {
		t.Fatalf("fake pfd says %q", s.Text())
	}
	return cmd, socket
}
