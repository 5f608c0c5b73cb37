package hostile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/space"
)

// says fails the test if an error's text lacks a part that its reader needs.
func says(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("the user reads %q; it has no %q", text, p)
		}
	}
}

// refusedWith is the user's text for each code (messages.md 2).
var refusedWith = [...]struct {
	is   error
	text []string
}{
	device.CodeSlaveError: {rdma.ErrSlaveError, []string{"memory of the transfer does not answer", "exanetctl fault show"}},
	device.CodeDecode:     {rdma.ErrAddress, []string{"an address is not mapped", "or cannot be reached", "exanetctl node show"}},
	device.CodeNoContext:  {rdma.ErrNoContext, []string{"no receive context left", "fewer transfers"}},
	device.CodeCorrupt:    {rdma.ErrCorrupt, []string{"packets arrive corrupted", "exanetctl counter show"}},
	device.CodeDomain:     {rdma.ErrDomain, []string{"does not admit this protection domain", "exanetctl domain grant"}},
	device.CodeReserved:   {rdma.ErrReserved, []string{"reserved code", "report it"}},
	device.CodeBufferFull: {rdma.ErrBufferFull, []string{"the target's buffer is full", "write again"}},
}

func nacks(code device.Code) string { return hw(device.Nacks0 + device.Counter(code)) }

// Errors that real processes can cause, from the cause to the text that the initiator's user
// reads.
func TestErrorsOfProcesses(t *testing.T) { everywhere(t, errorsOfProcesses) }

func errorsOfProcesses(t *testing.T, on place) {
	const size = 64 << 10
	for _, c := range []struct {
		name string
		args []string
		nack device.Code // the target's answer
		code device.Code // the code that the user reads
		log  bool        // the fault log has the reason
		make func(t *testing.T, w *world) (from *proxy, remote string)
	}{
		{
			name: "page that hangs", args: []string{"--guard-us", "500"}, nack: device.CodeSlaveError, code: device.CodeSlaveError,
			make: func(t *testing.T, w *world) (*proxy, string) {
				needRoot(t, "a full-mode userfaultfd")
				if w.shared {
					t.Skip("a process's userfaultfd cannot make shared memory hang")
				}
				p := w.pair("gup", "p1")
				return p.from, p.to.buffer("dst", "own userfaultfd", size, 0).Remote
			},
		},
		{
			name: "address that is not mapped", nack: device.CodeSlaveError, code: device.CodeDecode,
			make: func(_ *testing.T, w *world) (*proxy, string) {
				p := w.pair("gup", "p1")
				return p.from, p.to.buffer("dst", "hole", size, 0).Remote // not shared either
			},
		},
		{
			name: "address that the process cannot touch", nack: device.CodeSlaveError, code: device.CodeDecode, log: true,
			make: func(_ *testing.T, w *world) (*proxy, string) {
				p := w.pair("touch", "p1")
				return p.from, p.to.buffer("dst", "hole", size, 0).Remote
			},
		},
		{
			name: "domain that does not admit", nack: device.CodeDomain, code: device.CodeDomain,
			make: func(_ *testing.T, w *world) (*proxy, string) {
				to := w.attach("target", attachOrder{Node: 1, Group: "theirs"})
				m := to.buffer("dst", "anonymous", size, 0)
				return w.attach("initiator", attachOrder{Group: "ours"}), m.Remote
			},
		},
		{
			name: "target that has gone", nack: device.CodeDomain, code: device.CodeDomain,
			make: func(_ *testing.T, w *world) (*proxy, string) {
				p := w.pair("gup", "p1")
				m := p.to.buffer("dst", "anonymous", size, 0)
				domains := w.domains()
				p.to.kill()
				w.until("the target's domain has ended", func() bool { return w.domains() < domains })
				return p.from, m.Remote
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := on.start(t, c.args...)
			from, remote := c.make(t, w)
			from.buffer("src", "anonymous", size, 5)
			before := w.count(0, nacks(c.nack))
			from.write("x", "src", remote, size)
			r := from.wait("x")
			if r.Code != uint8(c.code) {
				t.Errorf("code %d, want %d", r.Code, c.code)
			}
			says(t, r.Text, append(refusedWith[c.code].text, "65536 bytes to node 1", fmt.Sprintf("status %d", c.code))...)
			w.saw(0, nacks(c.nack), before)
			if faults, err := w.Faults(t.Context(), 1, 1000); err != nil || c.log && !slices.ContainsFunc(faults, func(f control.Fault) bool { return f.Outcome == "failed" && f.Reason != "" }) {
				t.Errorf("no fault failed for a reason: %v, %+v", err, faults)
			}
		})
	}
}

// lab is a pfd in this process whose link and memory can be made to fail.
type lab struct {
	*emu.Engine
	dir    string
	client *control.Client
	link   atomic.Pointer[func(*wire.Frame) *wire.Frame]
	hang   atomic.Pointer[chan struct{}] // when closed, the memory of node 1 answers again
}

func (l *lab) Features() session.Features { return session.Features{Accesses: l.Engine.Accesses} }

func (l *lab) Attach(node, slot int, a *session.Attachment) error {
	s := a.Space
	if node == 1 {
		s = &hanging{Space: s, lab: l}
	}
	return l.Engine.Attach(node, slot, &emu.Attachment{Pages: a.Pages, Wake: a.Wake, Space: s, Gone: a.Gone})
}

// hanging is memory that may stop answering, like that of a process whose address space is
// locked.
type hanging struct {
	space.Space
	lab *lab
}

func (h *hanging) Run(op *space.Op) {
	if gate := h.lab.hang.Load(); gate != nil && op.Kind == space.Walk {
		<-*gate
	}
	h.Space.Run(op)
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{}
	var err error
	if l.dir, err = os.MkdirTemp(work, "lab"); err != nil {
		t.Fatal(err)
	}
	l.Engine, err = emu.New(emu.Config{Nodes: 2, Log: slog.New(slog.DiscardHandler), OnLink: func(f *wire.Frame) *wire.Frame {
		if link := l.link.Load(); link != nil && f.Kind == wire.Data {
			return (*link)(f)
		}
		return f
	}})
	if err != nil {
		t.Fatal(err)
	}
	cfg := daemon.Default()
	// A page-in that hangs at the target lasts as long as the test.
	cfg.TimeoutUS = uint32(patience.Microseconds())
	cfg.Socket = filepath.Join(l.dir, "s")
	if l.client, err = control.New(cfg.Socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.client.Close)
	d, err := daemon.New(cfg, l)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Errorf("pfd: %v", err)
		}
	})
	return l
}

func (l *lab) endpoint(t *testing.T, node device.NodeID) *rdma.Endpoint {
	t.Helper()
	ctx, cancel := within(patience)
	defer cancel()
	e, err := rdma.Attach(ctx, rdma.Options{Socket: filepath.Join(l.dir, "s"), Node: node, Group: "lab", Method: pagein.GUP, AcceptGroup: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// count returns a counter of node 0.
func (l *lab) count(t *testing.T, name string) uint64 {
	t.Helper()
	return (&world{t: t, Client: l.client}).count(0, name)
}

// flipped returns a frame of data with one bit of a packet inverted, which the receiver's CRC
// detects.
func flipped(f *wire.Frame) *wire.Frame {
	var arrived []*wire.Frame
	emit := func(f *wire.Frame) { arrived = append(arrived, f) }
	c := wire.NewCollector(new(wire.Pool))
	err := wire.Cut(f, nil, func(b []byte) error {
		b = slices.Clone(b)
		if b[len(b)-1] ^= 0x10; len(arrived) > 0 {
			return nil
		}
		p, err := wire.DecodePacket(b)
		if err == nil {
			c.Add(&p, emit)
		}
		return err
	})
	c.Flush(emit)
	c.Flush(emit)
	if err != nil || len(arrived) != 1 {
		return f // the test will find no corruption
	}
	return arrived[0]
}

func header(change func(h *wire.Header)) func(*wire.Frame) *wire.Frame {
	return func(f *wire.Frame) *wire.Frame {
		change(&f.Header)
		return f
	}
}

// Errors that only the machine can cause, each from its cause to the error of the API.
// Afterwards a transfer succeeds.
func TestErrorsOfTheMachine(t *testing.T) {
	const size = 32 << 10
	// occupy makes a process hold as many receive contexts as its large transfers may, in
	// memory that hangs.
	occupy := func(t *testing.T, e *rdma.Endpoint, src []byte, dst rdma.Remote) (list []*rdma.Transfer) {
		t.Helper()
		for i := range 4 {
			x, err := e.Write(t.Context(), rdma.WriteRequest{Src: src, Dst: dst, Offset: uint64(i) * uint64(len(src))})
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, x)
		}
		return list
	}
	for _, c := range []struct {
		name  string
		code  device.Code
		link  func(*wire.Frame) *wire.Frame
		hangs int  // processes that occupy the target, whose memory hangs
		other bool // the transfer belongs to another process
	}{
		{name: "address past the target's width", code: device.CodeDecode, link: header(func(h *wire.Header) { h.VA |= 1 << 50 })},
		{name: "contexts exhausted", code: device.CodeNoContext, hangs: 1},
		{name: "corrupt packets", code: device.CodeCorrupt, link: flipped},
		{name: "block that no sender makes", code: device.CodeReserved, link: header(func(h *wire.Header) { h.Remaining = uint32(h.Length) - 1 })},
		{name: "target's buffer full", code: device.CodeBufferFull, hangs: 2, other: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // a block fails after 64 attempts with back-off
			l := newLab(t)
			gate := make(chan struct{})
			release := func() {
				if l.hang.Swap(nil) != nil {
					close(gate)
				}
			}
			to, from := l.endpoint(t, 1), l.endpoint(t, 0)
			t.Cleanup(release) // runs before the endpoints close
			src, dst := memory(t, 8*device.BlockSize), memory(t, 64*device.BlockSize)
			fill(src, 5)
			fill(dst, 1)
			remote, err := to.Export(dst)
			if err != nil {
				t.Fatal(err)
			}
			if c.link != nil {
				l.link.Store(&c.link)
			}
			var stuck []*rdma.Transfer
			if c.hangs > 0 {
				l.hang.Store(&gate)
				stuck = occupy(t, from, src, remote)
			}
			for range c.hangs - 1 {
				stuck = append(stuck, occupy(t, l.endpoint(t, 0), src, remote)...)
			}
			if c.other {
				from = l.endpoint(t, 0)
			}
			for deadline := time.Now().Add(patience); c.hangs > 0 && l.count(t, nacks(c.code)) == 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the target is never full")
				}
			}
			ctx, cancel := within(patience)
			defer cancel()
			write := func() error {
				x, err := from.Write(ctx, rdma.WriteRequest{Src: src[:size], Dst: remote, Offset: 32 * device.BlockSize})
				if err == nil {
					err = x.Wait(ctx)
				}
				return err
			}
			var failed *rdma.TransferError
			if c.hangs > 0 {
				// The target is full for as long as its memory does not answer. The transfer is
				// paused like one into such memory, and completes when the memory answers.
				x, err := from.Write(ctx, rdma.WriteRequest{Src: src[:size], Dst: remote, Offset: 32 * device.BlockSize})
				if err != nil {
					t.Fatal(err)
				}
				stuck = append(stuck, x)
				for l.count(t, nacks(device.CodeSlaveError)) == 0 {
					if ctx.Err() != nil {
						t.Fatal("no block is paused for memory that does not answer")
					}
					time.Sleep(time.Millisecond)
				}
				if p := x.Poll(); p != rdma.Ongoing && p != rdma.Paused {
					t.Errorf("while the memory hangs the transfer is %v, want ongoing or paused", p)
				}
			} else {
				err = write()
				if want := refusedWith[c.code]; !errors.Is(err, want.is) || !errors.As(err, &failed) || failed.Code != uint8(c.code) {
					t.Fatalf("%v, want %v", err, want.is)
				}
				says(t, err.Error(), append(refusedWith[c.code].text, "32768 bytes to node 1", fmt.Sprintf("status %d", c.code))...)
				for code := device.CodeSlaveError; code <= device.CodeBufferFull; code++ {
					if n := l.count(t, nacks(code)); (n > 0) != (code == c.code) {
						t.Errorf("%d NACKs of code %d, of code %d there should be some, of others none", n, code, c.code)
					}
				}
				if n, first := wrong(dst[32*device.BlockSize:34*device.BlockSize], 1, 32*device.BlockSize); n != 0 {
					t.Errorf("%d bytes of a refused transfer arrived, the first at %d", n, first)
				}
			}

			// Removing the cause ends the error.
			l.link.Store(nil)
			release()
			for i, x := range stuck {
				if err := x.Wait(ctx); err != nil && !errors.As(err, &failed) {
					t.Errorf("transfer %d into memory that hung: %v", i, err)
				}
			}
			if err := write(); err != nil {
				t.Errorf("after the removal of the cause: %v", err)
			}
			if n, _ := wrong(dst[32*device.BlockSize:34*device.BlockSize], 5, 0); n != 0 {
				t.Errorf("%d bytes wrong of the transfer after it", n)
			}
		})
	}
}
