package session_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/rdma"
)

// patience bounds every wait of these tests.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	if session.IsMemoryHelper(os.Args) {
		if err := session.ServeMemory(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// start runs a Host over the emulated machine, or what wrap makes of it, and returns it and the
// path of the control socket that its attachment socket would be beside.
func start(t *testing.T, wrap func(session.Machine) session.Machine) (*session.Host, string) {
	t.Helper()
	m, err := daemon.Emulated(daemon.Default())
	if err != nil {
		t.Fatal(err)
	}
	if wrap != nil {
		m = wrap(m)
	}
	groups, err := domain.NewDirectory(domain.DirectoryConfig{GroupSize: domain.DefaultGroupSize, Quota: domain.DefaultQuota})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	h, err := session.New(session.Config{
		Machine: m, Log: slog.New(slog.DiscardHandler), Groups: groups,
		Now: func() int64 { return int64(time.Since(began)) },
		Settings: func() session.Settings {
			return session.Settings{
				TimeoutUS: device.TimeoutReset, GuardUS: device.GuardReset, Outstanding: domain.Outstanding,
				HandshakeTime: patience, HandshakesPerUID: 64, GSASQuota: 1 << 20,
			}
		},
		Observe:  func(*session.Node, *fault.Record) {},
		FromPeer: func(*session.Node, mailbox.Source, []uint64) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "pfd.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: control.AttachSocket(socket), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	run := func(what string, f func() error) {
		serving.Go(func() {
			if err := f(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	run("the machine", func() error { return m.Run(ctx) })
	for _, n := range h.Nodes() {
		run("a node", func() error { return h.ServeNode(ctx, n) })
	}
	done := h.Start()
	for range h.Nodes() {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	accepting, stop := context.WithCancel(ctx)
	accepted := make(chan error, 1)
	go func() { accepted <- h.Accept(accepting, l) }()
	t.Cleanup(func() {
		h.Drain()
		stop()
		h.End(attach.ReasonShutdown)
		h.Wait()
		if err := <-accepted; err != nil {
			t.Errorf("the attachment socket: %v", err)
		}
		cancel()
		serving.Wait()
		h.Stop()
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h, socket
}

// refusing is a machine that refuses attachments.
type refusing struct{ session.Machine }

func (refusing) Attach(int, int, *session.Attachment) error { return errors.New("it will not") }

// A process that is refused is no reason to refuse another one that joins its group.
func TestRefusedMemberOfAGroup(t *testing.T) {
	h, socket := start(t, func(m session.Machine) session.Machine { return refusing{m} })
	owned, free := make(chan struct{}), make(chan struct{})
	h.Nodes()[0].Bus().Post(func() { close(owned); <-free }) // so that it is listed for a while
	<-owned
	attached := make(chan error, 1)
	go func() {
		_, err := rdma.Attach(t.Context(), rdma.Options{Socket: socket, Group: "refused"})
		attached <- err
	}()
	var leaves func() bool
	for deadline := time.Now().Add(patience); leaves == nil && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		leaves = h.Listed()
	}
	close(free)
	if err := <-attached; err == nil || leaves == nil {
		t.Fatalf("attached: %v, listed: %v", err, leaves != nil)
	}
	if !leaves() {
		t.Error("it is still a member")
	}
}

// TestUserThatHoldsUp: a user whose memory took long to be mapped, as where its file is punched
// all the time, has no more of it mapped for a while: what it shares goes by its own table, and
// bytes move all the same. Page tables are counted while there is something entered.
func TestUserThatHoldsUp(t *testing.T) {
	h, socket := start(t, nil)
	ends := [2]*rdma.Endpoint{}
	for i := range ends {
		var err error
		if ends[i], err = rdma.Attach(t.Context(), rdma.Options{Socket: socket, Node: device.NodeID(i), Group: "holds"}); err != nil {
			t.Fatal(err)
		}
		defer ends[i].Close()
	}
	seen := func(b []byte) int { return h.Seen(rdma.VAOf(b), uint64(len(b))) }
	src := bytes.Repeat([]byte{3}, 2*device.PageSize)
	write := func() []byte {
		t.Helper()
		buf, err := ends[1].Alloc(len(src))
		if err != nil {
			t.Fatal(err)
		}
		to, err := ends[1].Export(buf.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		x, err := ends[0].Write(t.Context(), rdma.WriteRequest{Src: src, Dst: to})
		if err == nil {
			err = x.Wait(t.Context())
		}
		if err != nil || !bytes.Equal(buf.Bytes()[:len(src)], src) {
			t.Errorf("a write: %v", err)
		}
		return buf.Bytes()
	}
	if b := write(); seen(b) != 1 {
		t.Skip("this kernel gives no view: Linux 5.14 does")
	}
	if n := h.Tables(); n == 0 {
		t.Error("no page table is counted")
	}
	h.Turns().Quick(uint32(os.Getuid()), func() { time.Sleep(150 * time.Millisecond) })
	if b := write(); seen(b) != 0 {
		t.Error("memory of a user that holds others up is mapped")
	}
	for _, e := range ends {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	for end := time.Now().Add(2 * time.Minute); h.Tables() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d page tables are counted when all have left", h.Tables())
		}
	}
}
