package daemon

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/keeper"
)

func openFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestAttachmentComesAndGoes(t *testing.T) {
	r := start(t)
	before := openFDs(t)
	for round := range 3 {
		h := hello()
		h.Node, h.Method, h.Policy = 1, pagein.Touch, pagein.PIA
		g := r.attach(h)
		if g.Slot != 0 || g.Node != 1 || g.Interface != 16 || g.VABits != 48 || g.PFDPID != uint32(os.Getpid()) ||
			g.Method != pagein.Touch || g.Policy != pagein.PIA || g.PDID == 0 || g.PFDPort == 0 || g.OwnPort == 0 {
			t.Errorf("round %d: welcome %+v", round, g.Welcome)
		}
		if len(g.fds) != attach.MemoryFDs {
			t.Fatalf("%d descriptors came", len(g.fds))
		}
		pages := g.Pages()
		var cfg uint64
		r.fake.do(func() { cfg = r.fake.nodes[1].Get64(device.PL, device.PLPDCfg) })
		if cfg != uint64(g.PDID)|uint64(g.Generation)<<16|device.CfgEnable || g.Generation == 0 {
			t.Errorf("PD_CFG[0] = %#x, want PDID %#x enabled", cfg, g.PDID)
		}
		domains, err := r.client.Domains(r.ctx(), control.AllNodes)
		if err != nil || len(domains) != 1 {
			t.Fatalf("domains %+v, %v", domains, err)
		}
		if d := domains[0]; d.Node != 1 || d.Slot != 0 || d.PID != os.Getpid() || d.UID != uint32(os.Getuid()) ||
			d.Method != "touch" || d.Policy != "pa" || d.Group != "test" || d.State != control.DomainLive || d.PinnedBytes != 0 {
			t.Errorf("domain %+v", d)
		}
		g.fds.Close()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		r.until("the domain is gone", func() bool { return r.node(1).Info(0) == nil })
		if _, over := pages.Ended(); round == 0 && !over {
			r.until("the pages say so", func() bool { _, over := pages.Ended(); return over })
		}
	}
	var order []string
	r.fake.do(func() { order = slices.Clone(r.fake.log) })
	if got := strings.Join(order, " "); got != "attach detach attach detach attach detach" {
		t.Errorf("the machine saw %s", got)
	}
	r.client.Close()
	r.until("no descriptor is left", func() bool { return openFDs(t) <= before })
}

func TestProcessThatDiesIsTakenDown(t *testing.T) {
	r := start(t)
	p := spawn(t, "lend", "PFD_TEST_SOCKET="+r.cfg.Socket)
	holder, err := strconv.Atoi(p.line())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(holder, unix.SIGKILL) }()
	if n := len(r.domainsOf(0)); n != 1 {
		t.Fatalf("%d domains, want 1", n)
	}
	// Its socket stays open in the other process: only the pidfd tells.
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	r.until("the domain is gone", func() bool { return r.node(0).Info(0) == nil })
	if err := unix.Kill(holder, 0); err != nil {
		t.Errorf("the process that held the socket was not there any more: %v", err)
	}
}

func (r *running) domainsOf(node int) []control.Domain {
	r.t.Helper()
	d, err := r.client.Domains(r.ctx(), node)
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

func TestAddressSpaceThatIsGoneEndsTheAttachment(t *testing.T) {
	r := start(t)
	g := r.attach(hello())
	r.fake.do(func() { r.fake.attached[[2]int{0, 0}].Gone() })
	if e := r.ended(g); e.Reason != attach.ReasonProcess {
		t.Errorf("ended with %v", e.Reason)
	}
}

// Accesses in flight keep the slot and its memory until they end; no other process waits for
// them.
func TestStuckDomainDelaysNobodyElse(t *testing.T) {
	r := start(t)
	stuck := r.attach(hello())
	r.fake.do(func() { r.fake.nodes[0].InFlight[stuck.Slot] = 1 })
	stuck.Close()
	r.until("it drains", func() bool {
		d, ok := r.node(0).Manager().Domain(int(stuck.Slot))
		return ok && d.State.String() == control.DomainDraining
	})
	other := r.attach(hello())
	if other.Slot == stuck.Slot {
		t.Errorf("slot %d was given out while accesses were in flight", other.Slot)
	}
	r.fake.do(func() {
		if r.fake.attached[[2]int{0, int(stuck.Slot)}] == nil {
			t.Error("the machine was told to let go while accesses were in flight")
		}
		r.fake.nodes[0].InFlight[stuck.Slot] = 0
	})
	r.until("it is gone", func() bool { return r.node(0).Info(int(stuck.Slot)) == nil })
}

func TestRefusals(t *testing.T) {
	full := func(n int, change func(i int, h *attach.Hello)) func(*running) {
		return func(r *running) {
			for i := range n {
				h := hello()
				change(i, &h)
				r.attach(h)
			}
		}
	}
	for _, tc := range []struct {
		name   string
		before func(*running)
		change func(*attach.Hello)
		code   attach.Code
		text   string
	}{
		{"a node that is not there", nil, func(h *attach.Hello) { h.Node = 7 }, attach.CodeNoNode, "nodes 0 to 1"},
		{"a place without a node", nil, func(h *attach.Hello) { h.Node, h.Place = 2, true }, attach.CodeNoNode, "none in place 2"},
		{"the fifth of a group", full(4, func(int, *attach.Hello) {}), nil, attach.CodeGroupFull, "4 of at most 4 processes"},
		{"the seventh of a user", full(6, func(i int, h *attach.Hello) { h.Group = fmt.Sprint("g", i%2) }), nil, attach.CodeQuota, "6 of its 6 slots"},
		{"a machine that will not", func(r *running) { r.fake.do(func() { r.fake.refuse = errFake }) }, nil, attach.CodeInternal, errFake.Error()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := start(t, func(c *Config) { c.Quota, c.GroupSize = 6, 4 })
			if tc.before != nil {
				tc.before(r)
			}
			h := hello()
			if tc.change != nil {
				tc.change(&h)
			}
			held := len(r.domainsOf(control.AllNodes))
			_, err := dialAndGreet(r.ctx(), r.attachSocket(), h)
			var refused *attach.RefusedError
			if !errors.As(err, &refused) || refused.Code != tc.code || !strings.Contains(refused.Text, tc.text) {
				t.Errorf("attach: %v, want code %d with %q", err, tc.code, tc.text)
			}
			if n := len(r.domainsOf(control.AllNodes)); n != held {
				t.Errorf("%d domains after the refusal, %d before", n, held)
			}
			if n := r.refusals(); n != 1 {
				t.Errorf("%d refusals counted, want 1", n)
			}
		})
	}
}

func TestHandshakesAreBoundedInNumber(t *testing.T) {
	r := start(t, func(c *Config) { c.HandshakesPerUID = 3 })
	var idle []*attach.Conn
	for range 3 {
		c, err := attach.Dial(r.ctx(), r.attachSocket())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle = append(idle, c)
	}
	r.until("all three are begun", func() bool { return r.host.Handshakes().Total() == 3 })
	_, err := dialAndGreet(r.ctx(), r.attachSocket(), hello())
	var refused *attach.RefusedError
	if !errors.As(err, &refused) || refused.Code != attach.CodeBusy {
		t.Errorf("the fourth: %v, want it refused as busy", err)
	}
	idle[0].Close()
	r.until("one has gone", func() bool { return r.host.Handshakes().Total() == 2 })
	r.attach(hello())
}

func TestHandshakesAreBoundedInTime(t *testing.T) {
	r := start(t, func(c *Config) { c.HandshakeTime = time.Millisecond })
	c, err := attach.Dial(r.ctx(), r.attachSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := c.Receive(r.ctx(), make([]byte, attach.MaxMessage)); !errors.Is(err, io.EOF) {
		t.Errorf("a client that says nothing reads %v, want the end of the connection", err)
	}
}

// A client that sends and never reads is dropped, and others are served.
func TestClientThatNeverReadsIsDropped(t *testing.T) {
	r := start(t)
	deaf := r.attach(hello())
	r.attach(hello())
	msg, err := (&attach.Hello{Group: "x"}).Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		err = deaf.Send(msg)
	}
	r.until("it is dropped", func() bool { return r.node(0).Info(int(deaf.Slot)) == nil })
	if n := len(r.domainsOf(0)); n != 1 {
		t.Errorf("%d domains are left, want the other one", n)
	}
}

// pfd ends the attachment of a process that does not read its welcome, and closes each descriptor
// of it once: a number that is closed twice may belong to another attachment.
func TestWelcomeThatIsNotTaken(t *testing.T) {
	var out syncBuffer
	_, client, ctx := startEngine(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&out, nil)) })
	k, err := keeper.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	h := hello()
	va, proof := k.Proof()
	h.ProofVA, h.Proof = device.VA(va), proof
	msg, err := h.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: control.AttachSocket(client.Socket()), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(msg); err != nil {
		t.Fatal(err)
	}
	mapped := make([]byte, attach.MaxMessage)
	n, err := c.Read(mapped) // a header, as its answer is; without room for descriptors none comes
	if err != nil {
		t.Fatal(err)
	}
	if err := c.CloseRead(); err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint16(mapped, uint16(attach.TypeMapped))
	if _, _, err := c.WriteMsgUnix(mapped[:n], unix.UnixRights(k.PIDFD()), nil); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(out.String(), "welcome not delivered") {
		select {
		case <-ctx.Done():
			t.Fatalf("pfd says: %s", out.String())
		case <-time.After(time.Millisecond):
		}
	}
	if s := out.String(); strings.Contains(s, "level=WARN") {
		t.Errorf("pfd says: %s", s)
	}
}

// The process is told why its attachment was broken off.
func TestBrokenOffIsToldWithItsCause(t *testing.T) {
	r := start(t)
	g := r.attach(hello())
	if err := g.Send([]byte("no message")); err != nil {
		t.Fatal(err)
	}
	if e := r.ended(g); e.Reason != attach.ReasonProtocol || !strings.HasPrefix(e.Text, e.Reason.String()+": "+attach.ErrMessage.Error()) {
		t.Errorf("ended with %v: %q", e.Reason, e.Text)
	}
}

func TestEndOfThePFD(t *testing.T) {
	t.Run("drained", func(t *testing.T) {
		r := start(t)
		g := r.attach(hello())
		r.cancel()
		if e := r.ended(g); e.Reason != attach.ReasonShutdown {
			t.Errorf("ended with %v", e.Reason)
		}
		if err := r.wait(); err != nil {
			t.Errorf("Run: %v", err)
		}
		for _, p := range []string{r.cfg.Socket, r.attachSocket()} {
			if _, err := os.Lstat(p); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is left behind: %v", p, err)
			}
		}
	})
	t.Run("a transfer may finish", func(t *testing.T) {
		r := start(t, func(c *Config) { c.DrainTime = patience })
		g := r.attach(hello())
		r.fake.do(func() {
			r.fake.nodes[0].setChannel(0, 0, device.Descriptor{Done: device.DoneOngoing}, device.ChannelState{})
		})
		r.cancel()
		r.until("it drains", func() bool { return *r.state.Load() == control.StateDraining })
		r.fake.do(func() {
			if r.node(0).Info(int(g.Slot)) == nil {
				t.Error("the attachment ended before its transfer")
			}
			r.fake.nodes[0].setChannel(0, 0, device.Descriptor{Done: device.DoneCompleted}, device.ChannelState{})
		})
		if e := r.ended(g); e.Reason != attach.ReasonShutdown {
			t.Errorf("ended with %v", e.Reason)
		}
		if err := r.wait(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Run("nothing holds it for ever", func(t *testing.T) {
		r := start(t, func(c *Config) { c.DrainTime = time.Millisecond })
		g := r.attach(hello())
		r.fake.do(func() {
			r.fake.nodes[0].InFlight[g.Slot] = 1
			r.fake.nodes[0].setChannel(0, 0, device.Descriptor{Done: device.DoneOngoing}, device.ChannelState{})
		})
		r.cancel()
		if err := r.wait(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if e := r.ended(g); e.Reason != attach.ReasonShutdown {
			t.Errorf("ended with %v", e.Reason)
		}
	})
	t.Run("the device fails", func(t *testing.T) {
		r := start(t)
		g := r.attach(hello())
		r.fake.broken <- errFake
		if err := r.wait(); !errors.Is(err, errFake) {
			t.Errorf("Run: %v, want the device's error", err)
		}
		if e := r.ended(g); e.Reason != attach.ReasonDevice {
			t.Errorf("ended with %v", e.Reason)
		}
	})
	t.Run("no node answers", func(t *testing.T) {
		cfg := Default()
		cfg.Socket = t.TempDir() + "/pfd.sock"
		f := newFake(1)
		f.nodes[0].Set(device.PL, device.PLID, 0)
		d, err := New(cfg, f)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "starting the device") {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestAnotherUserSeesItsOwn(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	r := start(t)
	mine := r.attach(hello())
	r.fake.do(func() {
		// The child gets slot 1, the next generation, and its group the next sixteen
		// PDIDs. The last channels are what former domains left in that slot, the last
		// one with the same PDID.
		n, theirs, gen := r.fake.nodes[0], mine.PDID+domain.DefaultGroupSize, mine.Generation+1
		n.setChannel(0, 0, device.Descriptor{}, device.ChannelState{PDID: mine.PDID, Generation: mine.Generation})
		n.setChannel(1, 0, device.Descriptor{}, device.ChannelState{PDID: theirs, Generation: gen})
		n.setChannel(1, 1, device.Descriptor{}, device.ChannelState{PDID: 0xffff, Generation: gen})
		n.setChannel(1, 2, device.Descriptor{}, device.ChannelState{PDID: theirs, Generation: gen - 1})
		for i, pdid := range []device.PDID{mine.PDID, theirs, 0xffff} {
			n.setFIFO(i, device.FaultEntry{PDID: pdid}, 0)
		}
	})
	p := spawn(t, "nobody", "PFD_TEST_SOCKET="+r.cfg.Socket)
	var got []string
	for line := ""; line != "end" && !strings.HasPrefix(line, "child ended"); {
		line = p.line()
		got = append(got, line)
	}
	if len(got) == 0 || !strings.HasPrefix(got[0], "not dumpable: refused") || !strings.Contains(got[0], "PR_SET_DUMPABLE") {
		t.Errorf("a process that is not dumpable: %q", got)
	}
	want := []string{
		"dumpable: slot 1",
		"status: 1 domains, <nil>",
		"domains: 1, <nil>",
		"domain: uid 65534 slot 1",
		"channels: 1, <nil>",
		"banks: 1, <nil>",
		"fifo: level 1, 1 entries, <nil>",
		"registers: true",
		"end",
	}
	if len(got) < 1 || !slices.Equal(got[1:], want) {
		t.Errorf("the child saw\n%s\nwant\n%s", strings.Join(got[1:], "\n"), strings.Join(want, "\n"))
	}
	if n := len(r.domainsOf(0)); n != 2 {
		t.Errorf("root sees %d domains, want 2", n)
	}
}
