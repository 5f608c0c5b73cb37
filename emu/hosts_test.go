package emu_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/sim"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/soc/record"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
)

// cable joins two engines of one node each, with the ids 0 and 1, as links between hosts do.
type cable struct {
	ends [2]*end
	wg   sync.WaitGroup

	mu     sync.Mutex
	up     bool
	loss   float64
	most   int        // frames that wait before the cable is full
	chance *rand.Rand // of losses
	spy    func(f *wire.Frame)
	drop   func(f *wire.Frame) bool // reports which frames are lost besides
}

// end is the Carrier of one engine.
type end struct {
	cable *cable
	self  int
	wake  chan struct{}

	// Guarded by cable.mu.
	engine  *emu.Engine
	stopped chan struct{} // closed when engine has ended
	waiting []*wire.Frame
	full    bool
}

func newCable() *cable {
	c := &cable{up: true, most: 1 << 20, chance: rand.New(rand.NewPCG(1, 2))}
	for i := range c.ends {
		c.ends[i] = &end{cable: c, self: i, wake: make(chan struct{}, 1)}
	}
	return c
}

func (e *end) Flush() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *end) Reaches(id device.NodeID) bool { return int(id) == 1-e.self }

func (e *end) Send(f *wire.Frame) {
	c := e.cable
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spy != nil {
		c.spy(f)
	}
	if c.drop != nil && c.drop(f) || !c.up || c.chance.Float64() < c.loss {
		return
	}
	e.waiting = append(e.waiting, clone(f))
	if len(e.waiting) >= c.most && !e.full {
		e.full = true
		e.engine.LinkReady(f.DstNode, f.DstNode, wire.Ready(c.chance.IntN(2)))
	}
}

func clone(f *wire.Frame) *wire.Frame {
	own := *f
	own.Payload, own.Shared = bytes.Clone(f.Payload), nil
	return &own
}

// carry delivers what one end has sent to the engine of the other, until ended is closed.
func (e *end) carry(ended <-chan struct{}) {
	c, other := e.cable, e.cable.ends[1-e.self]
	done := make(chan struct{}, 1)
	for {
		c.mu.Lock()
		to, stopped, frames := other.engine, other.stopped, e.waiting
		e.waiting = nil
		if e.full {
			e.full = false
			if c.up {
				e.engine.LinkReady(device.NodeID(other.self), device.NodeID(other.self), wire.ReadyAll)
			}
		}
		c.mu.Unlock()
		if len(frames) > 0 {
			if !to.Arrive(frames, func() { done <- struct{}{} }, func() { c.wg.Go(func() { e.carry(ended) }) }) {
				return // the frames are still the engine's
			}
			select {
			case <-done:
			case <-stopped:
			case <-ended:
				return
			}
			for _, f := range frames { // a frame is the engine's only until then
				clear(f.Payload)
				*f = wire.Frame{}
			}
			continue
		}
		select {
		case <-e.wake:
		case <-ended:
			return
		}
	}
}

// set takes the cable up or down. Frames on a cable that goes down are lost.
func (c *cable) set(up bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up = up
	ready := wire.NotReady
	if up {
		ready = wire.ReadyAll
	}
	for i, e := range c.ends {
		if !up {
			e.waiting = nil
		}
		if up {
			e.engine.LinkUp(device.NodeID(1-i), device.NodeID(1-i))
		}
		e.engine.LinkReady(device.NodeID(1-i), device.NodeID(1-i), ready)
	}
}

// connect connects an end to its engine.
func (c *cable) connect(i int, e *emu.Engine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends[i].engine, c.ends[i].stopped = e, make(chan struct{})
}

// hosts is a machine of two engines.
type hosts struct {
	*cable
	engines [2]*emu.Engine
	stop    [2]func()
}

func newHosts(t testing.TB, bare bool, prepare ...func(i int, e *emu.Engine)) *hosts {
	t.Helper()
	h := &hosts{cable: newCable()}
	ended := make(chan struct{})
	for i := range h.engines {
		h.boot(t, i, bare, prepare...)
	}
	for _, e := range h.ends {
		h.wg.Go(func() { e.carry(ended) })
	}
	t.Cleanup(func() {
		close(ended)
		h.wg.Wait()
		for _, stop := range h.stop {
			stop()
		}
	})
	return h
}

// boot makes and runs engine i, a new life of that host.
func (h *hosts) boot(t testing.TB, i int, bare bool, prepare ...func(i int, e *emu.Engine)) {
	t.Helper()
	e, err := emu.New(emu.Config{Nodes: 1, Base: device.NodeID(i), Carrier: h.ends[i], NoTXFIFO: bare})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range prepare {
		f(i, e)
	}
	h.engines[i] = e
	h.connect(i, e)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = e.Run(ctx) }()
	h.stop[i] = sync.OnceFunc(func() { cancel(); <-done })
}

func (h *hosts) Bus(n int) device.Bus      { return h.engines[n].Bus(0) }
func (h *hosts) Space(n int) space.Machine { return h.engines[n].Space(0) }
func (h *hosts) Now() int64                { return h.engines[0].Now() }

func (h *hosts) on(n int, f func()) bool {
	done, e := make(chan struct{}), h.engines[n]
	e.Bus(0).Post(func() { defer close(done); f() })
	<-done
	return true
}

func (h *hosts) Attach(n, slot int, pages *attach.Pages, wake int, p *proc.Process) (err error) {
	h.on(n, func() {
		err = h.engines[n].Attach(0, slot, &emu.Attachment{Pages: pages, Wake: wake, Space: space.NewDirect(p, gup.New(p))})
	})
	return err
}

func (h *hosts) Detach(n, slot int) { h.on(n, func() { h.engines[n].Detach(0, slot) }) }

// The fault suite passes between two hosts.
func TestSuiteBetweenHosts(t *testing.T) {
	suite.Run(t, func(t *testing.T, bare bool) suite.Machine { return newHosts(t, bare) })
}

// Whatever a link between hosts loses, however often it is full and goes down and up, every byte of every
// write arrives, and nothing else is written. Recordings of both hosts replay exactly.
func TestCable(t *testing.T) {
	var files [2]bytes.Buffer
	var writers [2]*record.Writer
	h := newHosts(t, false, func(i int, e *emu.Engine) {
		writers[i] = record.NewWriter(&files[i], e.RecordHeader(), func(err error) { t.Error(err) })
		e.Record(writers[i])
	})
	r := suite.NewRig(t, h, fault.PIA, false)
	h.mu.Lock()
	h.loss, h.most = 0.005, 4
	h.mu.Unlock()
	for n := range 2 {
		h.on(n, func() {
			for _, reg := range []uint32{device.PLTimeoutUS, device.PLGuardUS} {
				if err := h.Bus(n).Window(device.PL).Write32(reg, 2000); err != nil {
					t.Error(err)
				}
			}
		})
	}
	const room = 256 << 10
	chance := rand.New(rand.NewPCG(3, 4))
	for round := range 40 {
		size, from, to := 1+chance.IntN(room-64), chance.IntN(64), chance.IntN(64)
		src, dst := r.Map(t, room), r.Map(t, room)
		for i := range src {
			src[i] = byte(chance.Uint32())
		}
		r.Start(round%8, device.Descriptor{Src: suite.VA(src) + device.VA(from), Dst: suite.VA(dst) + device.VA(to), Size: uint32(size), DstNode: 1})
		if round%2 == 0 {
			h.set(false)
			h.set(true)
		}
		done, status := r.Wait(round % 8)
		if done != device.DoneCompleted {
			t.Fatalf("write %d of %d bytes: done %d, status %d", round, size, done, status)
		}
		if want := slices.Concat(make([]byte, to), src[from:from+size], make([]byte, room-to-size)); !bytes.Equal(dst, want) {
			t.Fatalf("write %d of %d bytes: other bytes", round, size)
		}
	}
	for n := range 2 {
		h.on(n, func() {
			if err := writers[n].Close(); err != nil {
				t.Error(err)
			}
			got, err := sim.Replay(bytes.NewReader(files[n].Bytes()))
			if digest, count := writers[n].Digest(); err != nil || got.Digest != digest || got.Checked != count || got.Kinds[record.Admit] == 0 || got.Kinds[record.LinkReady] == 0 {
				t.Errorf("host %d: replayed %+v, want digest %#x of %d records: %v", n, got, digest, count, err)
			}
		})
	}
}

// rigAt boots host i of a cable, with a process.
func rigAt(t testing.TB, c *cable, i int) *rig {
	t.Helper()
	return newRigOf(t, emu.Config{Nodes: 1, Base: device.NodeID(i), Carrier: c.ends[i]}, fault.PIA, func(e *emu.Engine) { c.connect(i, e) })
}

// join carries the frames of a cable whose hosts are booted.
func (c *cable) join(t testing.TB) {
	ended := make(chan struct{})
	for _, e := range c.ends {
		c.wg.Go(func() { e.carry(ended) })
	}
	t.Cleanup(func() { close(ended); c.wg.Wait() })
}

// arrive passes frames to a host, and returns when it has taken them.
func arrive(e *emu.Engine, frames []*wire.Frame) {
	done := make(chan struct{})
	e.Arrive(frames, func() { close(done) }, nil)
	<-done
}

// to returns the descriptor of a write from one host to the other.
func (r *rig) to(other *rig, src, dst []byte) device.Descriptor {
	return device.Descriptor{
		Src: va(src), Dst: va(dst), Size: uint32(len(src)), DstNode: other.engine.Base(),
		DstPDID: other.sides[0].domain.PDID, DstGeneration: other.sides[0].domain.Generation,
	}
}

// A host is killed and comes back at once with the same ids. Every frame of its old life, and every frame to
// its old life, arrives again, and not one byte lands, no transfer ends and nothing crashes. Frames that come
// from outside in the name of an own node, or that no sender makes, are refused.
func TestOldLife(t *testing.T) {
	c := newCable()
	var old []*wire.Frame
	spying := true
	c.spy = func(f *wire.Frame) {
		if spying {
			old = append(old, clone(f))
		}
	}
	a, b := rigAt(t, c, 0), rigAt(t, c, 1)
	c.join(t)
	const size = 200 << 10
	src, atA, atB := bytes.Repeat([]byte{0xa5}, size), absent(t, size), absent(t, size)
	for round := range 3 {
		c.mu.Lock()
		c.loss = 0.005 * float64(round)
		c.mu.Unlock()
		a.sides[0].ring(round, a.to(b, src, atB))
		b.sides[0].ring(round, b.to(a, src, atA))
		if v, w := a.sides[0].wait(t, round), b.sides[0].wait(t, round); v != device.DoneCompleted || w != device.DoneCompleted {
			t.Fatalf("done %d and %d", v, w)
		}
	}
	c.mu.Lock()
	c.loss = 1 // these do not arrive in that life
	before := len(old)
	c.mu.Unlock()
	a.sides[0].ring(8, a.to(b, src, atB))
	b.sides[0].ring(8, b.to(a, src, atA))
	for sent := false; !sent; runtime.Gosched() {
		c.mu.Lock()
		from := func(id device.NodeID) bool {
			return slices.ContainsFunc(old[before:], func(f *wire.Frame) bool { return f.SrcNode == id && f.Kind == wire.Data })
		}
		sent = from(0) && from(1)
		c.mu.Unlock()
	}
	c.set(false)
	a.stop()
	close(c.ends[0].stopped)
	c.mu.Lock()
	spying, c.loss = false, 0
	c.mu.Unlock()

	next := rigAt(t, c, 0)
	c.set(true)
	if v := b.sides[0].wait(t, 8); v != device.DoneFailed {
		t.Errorf("a write to a process that was killed: done %d", v)
	} else if status, _ := b.sides[0].pages.Status(8); status != device.StatusDomain {
		t.Errorf("a write to a process that was killed: status %d", status)
	}
	other := bytes.Repeat([]byte{0x5a}, size)
	next.sides[0].ring(0, next.to(b, other, atB))
	b.sides[0].ring(0, b.to(next, other, atA))
	if v, w := next.sides[0].wait(t, 0), b.sides[0].wait(t, 0); v != device.DoneCompleted || w != device.DoneCompleted {
		t.Fatalf("done %d and %d", v, w)
	}
	if len(old) < 100 {
		t.Fatalf("%d frames of the old life", len(old))
	}
	chance := rand.New(rand.NewPCG(5, 6))
	for range 3 {
		chance.Shuffle(len(old), func(i, k int) { old[i], old[k] = old[k], old[i] })
		for i, r := range []*rig{next, b} {
			var frames []*wire.Frame
			for _, f := range old {
				if f.DstNode == device.NodeID(i) {
					frames = append(frames, clone(f))
				}
			}
			arrive(r.engine, frames)
		}
	}
	forged := clone(old[0])
	forged.SrcNode, forged.DstNode = 0, 0
	long := &wire.Frame{Header: wire.Header{Kind: wire.Data, SrcNode: 1}, Payload: make([]byte, device.BlockSize+1)}
	arrive(next.engine, []*wire.Frame{
		forged, long, {Header: wire.Header{Kind: wire.Message, SrcNode: 1}, MessageLen: 9}, {Header: wire.Header{Kind: wire.Message, SrcNode: 1, DstMailbox: 64}},
		{Header: wire.Header{Kind: wire.Ack, SrcNode: 1, SrcInterface: 64}, MessageLen: 1}, {Header: wire.Header{Kind: 9, SrcNode: 1}}, {Header: wire.Header{DstNode: 77}},
	})
	// Whatever the frames have caused has ended before these.
	for ch, r := range []*rig{next, b} {
		if v := r.sides[0].pages.Done(5); v != device.DoneReset && v != 0 {
			t.Errorf("host %d: channel 5 was not used, and has done %d", ch, v)
		}
	}
	end := absent(t, size)
	next.sides[0].ring(1, next.to(b, other, end))
	b.sides[0].ring(1, b.to(next, other, absent(t, size)))
	if v, w := next.sides[0].wait(t, 1), b.sides[0].wait(t, 1); v != device.DoneCompleted || w != device.DoneCompleted {
		t.Fatalf("done %d and %d", v, w)
	}
	if !bytes.Equal(atA, other) || !bytes.Equal(atB, other) {
		t.Error("bytes of an old life have landed")
	}
}

// A host that is gone, or that drains: writes and reads end with status 10, messages are refused, and all of
// that again until it is back.
func TestGone(t *testing.T) {
	c := newCable()
	a, b := rigAt(t, c, 0), rigAt(t, c, 1)
	c.join(t)
	p := a.sides[0]
	src, dst := bytes.Repeat([]byte{7}, 4096), absent(t, 4096)
	words := absent(t, 4096)
	write := func(ch int, status uint8) {
		t.Helper()
		a.on(0, func() {}) // the engine has been told before the doorbell
		p.ring(ch, a.to(b, src, dst))
		v := p.wait(t, ch)
		if got, _ := p.pages.Status(ch); (v == device.DoneCompleted) != (status == 0) || status != 0 && got != status {
			t.Errorf("a write: done %d, status %d, want status %d", v, got, status)
		}
	}
	other := b.sides[0].domain
	ask := func(tag uint16) {
		t.Helper()
		m := mailbox.ReadRequest{
			Tag: tag, Size: 4096, Src: va(src), Dst: va(dst), Notify: va(words), First: 1, Last: uint64(tag), Target: other.PDID, TargetGeneration: other.Generation,
		}.Encode()
		if !p.pages.SendTo(0, packetizer.Destination(1, device.MailboxRead, 0), 1, m[:]) {
			t.Fatal("the packetizer is busy")
		}
		p.kick()
	}
	answer := func(tag uint16) {
		t.Helper()
		var m attach.Mail
		for deadline := time.Now().Add(2 * time.Minute); ; runtime.Gosched() {
			if ok, _ := p.pages.TakeMail(&m); ok {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the read is not answered")
			}
		}
		got, err := mailbox.DecodeAnswer(m.Words[0])
		if err != nil || got != (mailbox.Ack{Transaction: device.TransactionID(tag), Code: device.CodeReserved, Sequence: device.StatusGone}) {
			t.Errorf("read %d is answered by %+v, %v", tag, got, err)
		}
	}
	write(0, 0)
	c.set(false)
	p.ring(1, a.to(b, src, dst))
	ask(1)
	for deadline := time.Now().Add(2 * time.Minute); underway(a, 1) != 2; {
		if time.Now().After(deadline) {
			t.Fatalf("%d transfers under way, want 2", underway(a, 1))
		}
	}
	a.engine.Gone(1, 1)
	if v := p.wait(t, 1); v != device.DoneFailed {
		t.Errorf("done %d", v)
	} else if status, _ := p.pages.Status(1); status != device.StatusGone {
		t.Errorf("status %d", status)
	}
	answer(1)
	write(2, device.StatusGone)
	ask(2)
	answer(2)
	if n := underway(a, 1); n != 0 {
		t.Errorf("%d transfers under way", n)
	}
	c.set(true)
	write(3, 0)
	a.engine.Drain(1, 1, true)
	write(4, device.StatusGone)
	ask(3)
	answer(3)
	a.engine.Drain(1, 1, false)
	write(5, 0)
	// A node that no host has.
	d := a.to(b, src, dst)
	d.DstNode = 9
	p.ring(6, d)
	if v := p.wait(t, 6); v != device.DoneFailed {
		t.Errorf("done %d", v)
	} else if status, _ := p.pages.Status(6); status != device.StatusDecode {
		t.Errorf("status %d", status)
	}
}

func underway(r *rig, other device.NodeID) int {
	n := make(chan int)
	r.on(0, func() {}) // after what was rung
	r.engine.Underway(other, other, func(sum int) { n <- sum })
	return <-n
}

// The acknowledgement of a block is lost with the link, and its target strikes the sender's host and takes it
// back: the block is not written a second time, to memory that the process uses for something else.
func TestWrittenOnce(t *testing.T) {
	c := newCable()
	lost := make(chan struct{}, 1)
	c.drop = func(f *wire.Frame) bool {
		if f.Kind != wire.Ack || f.Code != device.CodeAck {
			return false
		}
		select {
		case lost <- struct{}{}:
		default:
		}
		return true
	}
	a, b := rigAt(t, c, 0), rigAt(t, c, 1)
	c.join(t)
	src, dst := bytes.Repeat([]byte{0xa5}, 4096), absent(t, 4096)
	b.sides[0].ring(1, b.to(a, src, dst))
	<-lost
	if !bytes.Equal(src, dst) {
		t.Error("acknowledged, and not written")
	}
	c.set(false)
	a.engine.Gone(1, 1)
	a.on(0, func() {})
	next := bytes.Repeat([]byte{0x11}, len(dst))
	copy(dst, next)
	c.mu.Lock()
	c.drop = nil
	c.mu.Unlock()
	c.set(true)
	if v := b.sides[0].wait(t, 1); v != device.DoneCompleted || !bytes.Equal(dst, next) {
		t.Errorf("done %d; the memory is as it was: %v", v, bytes.Equal(dst, next))
	}
}

// Memory of a process of the other host hangs while a frame is written there, perhaps on the goroutine that
// brought the frame. Other frames arrive nevertheless.
func TestHangingMemoryStopsNoCarrier(t *testing.T) {
	c := newCable()
	a, b := rigAt(t, c, 0), rigAt(t, c, 1)
	c.join(t)
	hung := &stuck{Memory: b.process, release: newGate(t)}
	p, side := a.sides[0], b.sides[0]
	b.on(0, func() {
		b.engine.Detach(0, side.domain.Slot)
		if err := b.engine.Attach(0, side.domain.Slot, &emu.Attachment{Pages: side.pages, Wake: side.mem.WakeFD(), Space: space.NewDirect(hung, gup.New(b.process))}); err != nil {
			t.Error(err)
		}
	})
	src, dst := suite.Map(t, 4096), suite.Map(t, 4096)
	for i := range src {
		src[i] = byte(i * 7)
	}
	copy(dst, src) // present
	d := a.to(b, src, dst)
	hung.hang.Store(true)
	p.ring(0, d)
	for hung.calls.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	wrong := d
	wrong.DstGeneration++
	p.ring(1, wrong)
	if done := p.wait(t, 1); done != device.DoneFailed {
		t.Errorf("a transfer to a former life of the domain: done %d", done)
	}
	hung.hang.Store(false)
	hung.release.open()
	if done := p.wait(t, 0); done != device.DoneCompleted {
		t.Errorf("the transfer to the memory that hung: done %d", done)
	}
}
