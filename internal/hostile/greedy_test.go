package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
)

// A user gets its quota of a node's slots and no more, and a node has sixteen. A refusal states
// its reason, and slots in use stay.
func TestSlotsRunOut(t *testing.T) {
	needRoot(t, "domains of several users need their processes")
	onEach(t, slotsRunOut, "--quota", "8")
}

func slotsRunOut(t *testing.T, w *world) {
	b := w.bystander(attachOrder{UID: 3000})
	refused := func(p *proxy, a attachOrder, text string) {
		t.Helper()
		before := w.count(control.AllNodes, control.CounterRefused)
		a.Socket = w.socket()
		r, err := p.do(order{Op: "attach", Attach: a})
		if err != nil || !strings.Contains(r.Err, text) {
			t.Errorf("uid %d: %q, %v; want a refusal with %q", a.UID, r.Err, err, text)
		}
		w.saw(control.AllNodes, control.CounterRefused, before)
	}
	var last *proxy
	for _, user := range []struct {
		uid   uint32
		slots int
	}{{3001, 8}, {3002, 6}} { // with the bystander's, fifteen
		p := w.spawn("greedy", user.uid)
		for i := range user.slots {
			p.must(order{Op: "attach", Attach: attachOrder{Socket: w.socket(), Group: fmt.Sprint("g", i)}})
		}
		if user.slots == 8 {
			refused(p, attachOrder{UID: user.uid, Group: "g8"}, "of its 8 slots")
		} else {
			refused(p, attachOrder{UID: user.uid, Group: "g6"}, "reserved for a user who has none")
		}
		last = p
	}
	w.spawn("the last", 3004).must(order{Op: "attach", Attach: attachOrder{Socket: w.socket()}})
	poor := w.spawn("poor", 3003)
	refused(poor, attachOrder{UID: 3003, Group: "poor"}, "16")
	// A process that ends releases its slots.
	last.kill()
	w.until("a slot is free", func() bool {
		r, err := poor.do(order{Op: "attach", Attach: attachOrder{Socket: w.socket(), Group: "poor"}})
		return err == nil && r.Err == ""
	})
	b.fine()
}

// A process may have a few connections, but not many.
func TestManyConnections(t *testing.T) {
	needRoot(t, "a flood by another user needs one")
	onEach(t, manyConnections)
}

func manyConnections(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	flood := w.spawn("flood", 3001)
	before := w.count(control.AllNodes, control.CounterRefused)
	for _, path := range []string{w.socket(), control.AttachSocket(w.socket())} {
		flood.must(order{Op: "flood", Path: path, Size: 500})
		// Others are served meanwhile.
		for range 20 {
			if _, err := w.Status(w.ctx()); err != nil {
				t.Fatal(err)
			}
		}
		b.some()
	}
	w.saw(control.AllNodes, control.CounterRefused, before)
	w.saw(control.AllNodes, control.CounterDropped, 0)
	flood.kill()
	// Its connections end when pfd has found them closed.
	after := w.spawn("after", 3001)
	w.until("the user is served again", func() bool {
		r, err := after.do(order{Op: "attach", Attach: attachOrder{Socket: w.socket()}})
		return err == nil && r.Err == ""
	})
	after.kill()
	b.fine()
}

// flood opens connections, sends an invalid message on each, and keeps them open.
func (a *obedient) flood(o order) (n int, err error) {
	if o.Kind == "log" {
		return a.floodLog(o.Path, o.Size)
	}
	network := "unix"
	if strings.HasSuffix(o.Path, attach.SocketSuffix) {
		network = "unixpacket"
	}
	for i := range o.Size {
		c, err := net.Dial(network, o.Path)
		if err != nil {
			return n, nil // enough
		}
		a.keep = append(a.keep, c)
		switch i % 3 {
		case 0:
			_, err = io.WriteString(c, "GET /v1/status HTTP/1.1\r\nX-Long: "+strings.Repeat("x", 500))
		case 1:
			_, err = c.Write(make([]byte, 400))
		}
		if err == nil {
			n++
		}
	}
	return n, nil
}

// All channels of a process are busy forever. That process gets an error, others continue, and
// its end releases everything.
func TestAllChannelsBusy(t *testing.T) {
	needRoot(t, "a full-mode userfaultfd")
	w := start(t)
	b := w.bystander(attachOrder{})
	target := w.attach("target", attachOrder{Node: 1, Group: "greedy"})
	greedy := w.attach("greedy", attachOrder{Group: "greedy"})
	m := target.buffer("stuck", "own userfaultfd", 1<<20, 0)
	greedy.buffer("src", "anonymous", 1<<20, 5)
	for i := range device.WriteChannels {
		greedy.write(fmt.Sprint(i), "src", m.Remote, 1<<20)
	}
	r, err := greedy.do(order{Op: "write", ID: "more", Kind: "src", Remote: m.Remote, Size: 1 << 20})
	if err != nil || !strings.Contains(r.Err, "channels busy") {
		t.Errorf("a write beyond the last channel: %q, %v", r.Err, err)
	}
	// The other half of the channels are the firmware's, which serve reads by others.
	theirs := greedy.buffer("read from", "anonymous", 1<<20, 5).Remote
	for i := range rdma.MaxReads {
		target.must(order{Op: "read", ID: fmt.Sprint("r", i), Kind: "stuck", Remote: theirs, Size: 1 << 20})
	}
	r, err = target.do(order{Op: "read", ID: "more", Kind: "stuck", Remote: theirs, Size: 1 << 20})
	if err != nil || !strings.Contains(r.Err, "busy") {
		t.Errorf("a read beyond the last channel: %q, %v", r.Err, err)
	}
	pdid := pdidOf(t, theirs)
	busy := func() (n int) {
		list, err := w.Channels(w.ctx(), 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			if c.State == "ongoing" && c.PDID == uint16(pdid) {
				n++
			}
		}
		return n
	}
	w.until("all channels of its page are busy", func() bool { return busy() == device.ChannelsPerSlot })
	b.some()
	w.saw(1, control.CounterLeases, 0)
	target.kill()
	for i := range device.WriteChannels {
		if r := greedy.wait(fmt.Sprint(i)); r.Code == 0 {
			t.Errorf("transfer %d arrived in memory of an ended process", i)
		}
	}
	w.until("the target's slot is free", func() bool { return w.domains() == 3 })
	w.until("all channels of the page are free", func() bool { return busy() == 0 })
	b.fine()
}

// read starts a read into the process's buffer.
func (a *obedient) read(o order) error {
	dst, err := a.buffer(o.Kind)
	if err != nil {
		return err
	}
	src, err := rdma.ParseRemote(o.Remote)
	if err != nil {
		return err
	}
	a.transfers[o.ID], err = a.ep.Read(context.Background(), rdma.ReadRequest{DstVA: dst.va, Size: o.Size, Src: src})
	return err
}

// domains counts the live domains.
func (w *world) domains() int {
	w.t.Helper()
	list, err := w.Domains(w.ctx(), control.AllNodes)
	if err != nil {
		w.t.Fatal(err)
	}
	return len(list)
}

// A process that pages in by itself and does not read its netlink socket fails its own
// transfers. pfd neither blocks nor buffers.
func TestNetlinkSocketThatIsNotRead(t *testing.T) { onEach(t, netlinkNotRead, "--guard-us", "2000") }

func netlinkNotRead(t *testing.T, w *world) {
	b := w.bystander(attachOrder{Method: "touch"})
	deaf := w.raw(attach.Hello{Group: "deaf", Node: 1, Method: pagein.Touch})
	from := w.raw(attach.Hello{Group: "deaf"})
	const size = 4 << 20
	src, dst := w.memory(size, from), w.memory(size, deaf)
	fill(src, 5)
	for ch := range device.WriteChannels {
		from.ring(ch, device.Descriptor{Src: va(src), Dst: va(dst), Size: size, DstNode: deaf.Node})
	}
	w.saw(1, "netlink_full_total", 0)
	b.some()
	if done, status := from.end(0); done != device.DoneFailed || status != device.StatusSlaveError && status != device.StatusLimit {
		t.Errorf("a transfer to a process that does not page in: done %d, status %d", done, status)
	}
	b.fine()
}

// gated withholds interrupts from the driver until it is opened.
type gated struct {
	device.Bus
	open  *atomic.Bool
	inner device.Handler
}

func (g *gated) Serve(ctx context.Context, h device.Handler) error {
	g.inner = h
	return g.Bus.Serve(ctx, g)
}

func (g *gated) Interrupt(vector int) {
	if g.open.Load() {
		g.inner.Interrupt(vector)
	}
}

type engine struct {
	*emu.Engine
	buses [2]*gated
}

func (e *engine) Bus(n int) device.Bus { return e.buses[n] }

func (e *engine) Attach(node, slot int, pages *attach.Pages, wake int, p *proc.Process) error {
	done := make(chan error)
	e.Engine.Bus(node).Post(func() {
		done <- e.Engine.Attach(node, slot, &emu.Attachment{Pages: pages, Wake: wake, Space: space.NewDirect(p, gup.New(p))})
	})
	return <-done
}

func (e *engine) Detach(node, slot int) {
	done := make(chan struct{})
	e.Engine.Bus(node).Post(func() { defer close(done); e.Engine.Detach(node, slot) })
	<-done
}

// The 513th entry of the fault FIFO is dropped and counted. The guard time-out retransmits its
// block, and every byte arrives.
func TestFIFOOverflows(t *testing.T) {
	e, err := emu.New(emu.Config{Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() { defer close(over); _ = e.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-over })
	m := &engine{Engine: e}
	var open [2]atomic.Bool
	for n := range m.buses {
		m.buses[n] = &gated{Bus: e.Bus(n), open: &open[n]}
	}
	open[0].Store(true)
	rig := suite.NewRig(t, m, fault.PIO, false)
	const size = 1 << 20
	var src, dst [device.WriteChannels][]byte
	for ch := range src {
		src[ch], dst[ch] = suite.Map(t, size), suite.Map(t, size)
		fill(src[ch], uint64(ch+1))
		rig.Start(ch, device.Descriptor{Src: suite.VA(src[ch]), Dst: suite.VA(dst[ch]), Size: size, DstNode: 1})
	}
	var status uint32
	for status&device.FIFOOverflow == 0 {
		rig.On(1, func() { status, _ = m.Bus(1).Window(device.PL).Read32(device.PLRXFIFOStatus) })
	}
	if level := status & device.FIFOLevelMask; level != device.FIFODepth {
		t.Errorf("an overflow at %d entries, want %d", level, device.FIFODepth)
	}
	open[1].Store(true)
	rig.On(1, func() { m.buses[1].inner.Interrupt(device.VectorFault); m.buses[1].inner.Interrupt(device.VectorFIFO) })
	for ch := range src {
		if done, status := rig.Wait(ch); done != device.DoneCompleted {
			t.Fatalf("channel %d: done %d, status %d", ch, done, status)
		}
		if n, first := wrong(dst[ch], uint64(ch+1), 0); n != 0 {
			t.Errorf("channel %d: %d bytes wrong from %d on", ch, n, first)
		}
	}
	if rig.Count(1, device.FIFOOverflows) == 0 {
		t.Error("the hardware counts no overflow")
	}
	rig.On(1, func() {
		if rig.Drivers[1].Stats().Overflows == 0 {
			t.Error("the driver counts no overflow")
		}
	})
}

// A limit of descriptors that leaves none for one more file is an error with its reason, and
// does not end pfd.
func TestDescriptorsRunOut(t *testing.T) {
	needRoot(t, "prlimit of another process")
	onEach(t, descriptorsRunOut)
}

func descriptorsRunOut(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	highest := 0
	for _, e := range fds {
		var n int
		if _, err := fmt.Sscan(e.Name(), &n); err == nil {
			highest = max(highest, n)
		}
	}
	var old unix.Rlimit
	if err := unix.Prlimit(w.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		t.Fatal(err)
	}
	// One at a time, so that each call of an attachment fails once.
	for more := range 12 {
		limit := unix.Rlimit{Cur: uint64(highest + 1 + more), Max: old.Max}
		if err := unix.Prlimit(w.cmd.Process.Pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := within(patience / 4)
		c, err := attach.Dial(ctx, control.AttachSocket(w.socket()))
		if err == nil {
			_, fds, herr := c.Handshake(ctx, attach.Hello{Group: "poor"})
			fds.Close()
			_ = c.Close()
			err = herr
		}
		cancel()
		var refused *attach.RefusedError
		if err != nil && errors.As(err, &refused) && refused.Text == "" {
			t.Errorf("with room for %d descriptors: refused without a reason", more)
		}
		b.some()
	}
	if err := unix.Prlimit(w.cmd.Process.Pid, unix.RLIMIT_NOFILE, &old, nil); err != nil {
		t.Fatal(err)
	}
	w.attach("after", attachOrder{})
	b.fine()
}
