package rdma_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/rdma"
)

// ends are two endpoints, and their names for messages.
func ends(t *testing.T, nodes ...device.NodeID) (list []*rdma.Endpoint, names []rdma.Remote) {
	t.Helper()
	socket, stop, err := startPFD()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	for _, n := range nodes {
		e, err := rdma.Attach(t.Context(), rdma.Options{Socket: socket, Node: n, AcceptGroup: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		r, err := e.ExportVA(1<<20, 1)
		if err != nil {
			t.Fatal(err)
		}
		list, names = append(list, e), append(names, r)
	}
	return list, names
}

var polls, pollsOver = context.WithCancel(context.Background())

func init() { pollsOver() }

func TestMessages(t *testing.T) {
	for _, c := range []struct{ from, to device.NodeID }{{0, 1}, {0, 0}} {
		e, r := ends(t, c.from, c.to)
		for n := 1; n <= 8; n++ {
			words := [8]uint64{0xabcdef0000000003, 2, 3, 4, 5, 6, 7, 1<<64 - 1}
			clear(words[n:])
			number, err := e[0].Send(t.Context(), r[1], words[:n]...)
			if err != nil || number != uint32(n) {
				t.Fatalf("%d words: number %d, %v", n, number, err)
			}
			m, err := e[1].Receive(t.Context())
			if err != nil || m.Node != c.from || m.PDID != r[0].PDID || m.Interface != r[0].Interface || m.N != n || m.Words != words {
				t.Fatalf("%d words: %+v, %v", n, m, err)
			}
		}
		if _, err := e[1].Receive(polls); !errors.Is(err, context.Canceled) {
			t.Errorf("with nothing there: %v", err)
		}
	}
}

// A receiver that does not read: as many messages as ring, mailbox and pfd's hand have room for
// arrive, and each other one is told to its sender with its number.
func TestMessagesFill(t *testing.T) {
	const room = attach.MailSlots + 1 + device.MailboxDepth
	for _, to := range []device.NodeID{1, 0} {
		e, r := ends(t, 0, to)
		sent := uint64(0)
		for fill := range room + 8 {
			var want []uint64
			byNumber := map[uint32]uint64{}
			refused := 0
			for range fill {
				number, err := e[0].Send(t.Context(), r[1], 0, sent)
				switch {
				case errors.Is(err, rdma.ErrRefused):
					refused++
				case err != nil:
					t.Fatal(err)
				default:
					byNumber[number] = sent
				}
				sent++
			}
			for refused < fill-room {
				_, err := e[0].Receive(t.Context())
				var no *rdma.RefusedError
				if !errors.As(err, &no) || !no.Late || no.Node != to {
					t.Fatalf("node %d, %d messages, %d of them refused: %v", to, fill, refused, err)
				}
				refused++
				delete(byNumber, no.Number)
			}
			for _, v := range byNumber {
				want = append(want, v)
			}
			slices.Sort(want)
			for _, v := range want {
				if m, err := e[1].Receive(t.Context()); err != nil || m.Words[1] != v {
					t.Fatalf("node %d, %d messages: %+v, %v; want %d", to, fill, m, err, v)
				}
			}
			if len(want) != min(fill, room) {
				t.Fatalf("node %d: %d of %d messages arrived", to, len(want), fill)
			}
			if m, err := e[1].Receive(polls); !errors.Is(err, context.Canceled) {
				t.Fatalf("one more: %+v, %v", m, err)
			}
		}
	}
}

func TestBadMessages(t *testing.T) {
	e, r := ends(t, 0, 1)
	with := func(change func(*rdma.Remote)) rdma.Remote {
		v := r[1]
		change(&v)
		return v
	}
	for name, c := range map[string]struct {
		to    rdma.Remote
		words []uint64
		want  error
		says  string
	}{
		"0 words":             {r[1], nil, rdma.ErrRequest, "0 words"},
		"9 words":             {r[1], make([]uint64, 9), rdma.ErrRequest, "9 words"},
		"wired bits":          {r[1], []uint64{4}, rdma.ErrRequest, "[17:2]"},
		"reserved kind":       {r[1], []uint64{11 << 18}, rdma.ErrRequest, "kind 11"},
		"to oneself":          {r[0], []uint64{0}, rdma.ErrRequest, "its own sender"},
		"no interface":        {with(func(r *rdma.Remote) { r.Interface = 0 }), []uint64{0}, rdma.ErrRequest, "interface"},
		"driver's interface":  {with(func(r *rdma.Remote) { r.Interface = 15 }), []uint64{0}, rdma.ErrRequest, "interface 15"},
		"too large interface": {with(func(r *rdma.Remote) { r.Interface = 32 }), []uint64{0}, rdma.ErrRequest, "interface 32"},
		"too large node":      {with(func(r *rdma.Remote) { r.Node = 1 << 22 }), []uint64{0}, rdma.ErrRequest, "0x400000"},
		"no such node":        {with(func(r *rdma.Remote) { r.Node = 77 }), []uint64{0}, rdma.ErrRefused, "node 77"},
		"no such slot":        {with(func(r *rdma.Remote) { r.Interface = 31 }), []uint64{0}, rdma.ErrRefused, "node 1"},
		"another generation":  {with(func(r *rdma.Remote) { r.Generation++ }), []uint64{0}, rdma.ErrRefused, "node 1"},
	} {
		number, err := e[0].Send(t.Context(), c.to, c.words...)
		if err == nil && errors.Is(c.want, rdma.ErrRefused) { // it comes late
			_, err = e[0].Receive(t.Context())
		}
		if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.want, c.says)
		}
		var no *rdma.RefusedError
		if errors.As(err, &no) && no.Number != number {
			t.Errorf("%s: %v is about message %d, not %d", name, err, no.Number, number)
		}
	}
	if m, err := e[1].Receive(polls); !errors.Is(err, context.Canceled) {
		t.Errorf("one of them arrived: %+v, %v", m, err)
	}
	if err := e[0].Handle(mailbox.KindProgram, func(rdma.Message) {}); !errors.Is(err, rdma.ErrRequest) {
		t.Errorf("handling the program's kind: %v", err)
	}
	if _, err := e[0].Send(polls, r[1], 0); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	if err := e[1].Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := e[1].Receive(t.Context()); !errors.Is(err, rdma.ErrGone) && !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("receiving after the end: %v", err)
	}
	if _, err := e[1].Send(t.Context(), r[0], 0); !errors.Is(err, rdma.ErrGone) && !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("sending after the end: %v", err)
	}
	_, err := e[0].Send(t.Context(), r[1], 0)
	if err == nil {
		_, err = e[0].Receive(t.Context())
	}
	if !errors.Is(err, rdma.ErrRefused) {
		t.Errorf("to a process that has ended: %v", err)
	}
}

// A domain that does not admit the sender's.
func TestMessageIsNotAdmitted(t *testing.T) {
	socket, stop, err := startPFD()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	var e [2]*rdma.Endpoint
	for i, group := range []string{"a", "b"} {
		if e[i], err = rdma.Attach(t.Context(), rdma.Options{Socket: socket, Group: group}); err != nil {
			t.Fatal(err)
		}
		defer e[i].Close()
	}
	to, err := e[1].ExportVA(1<<20, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e[0].Send(t.Context(), to, 0); !errors.Is(err, rdma.ErrRefused) {
		t.Errorf("%v", err)
	}
	if m, err := e[1].Receive(polls); !errors.Is(err, context.Canceled) {
		t.Errorf("it arrived: %+v, %v", m, err)
	}
}

// Each kind has its own receiver, and a program's Receive takes none of the others'.
func TestHandle(t *testing.T) {
	e, r := ends(t, 0, 1)
	kinds := []mailbox.Kind{mailbox.KindStream, mailbox.KindConnection, mailbox.KindMemory}
	got := make(chan rdma.Message)
	for _, k := range kinds {
		if err := e[1].Handle(k, func(m rdma.Message) { got <- m }); err != nil {
			t.Fatal(err)
		}
	}
	if err := e[1].Handle(mailbox.KindStream, func(rdma.Message) {}); !errors.Is(err, rdma.ErrRequest) {
		t.Errorf("a second handler: %v", err)
	}
	for i := range uint64(100) {
		for _, k := range append(kinds, mailbox.KindProgram) {
			if _, err := e[0].Send(t.Context(), r[1], k.Word(), i); err != nil {
				t.Fatal(err)
			}
			var m rdma.Message
			if k == mailbox.KindProgram {
				var err error
				if m, err = e[1].Receive(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				m = <-got
			}
			if mailbox.KindOf(m.Words[0]) != k || m.Words[1] != i {
				t.Fatalf("%+v, want kind %d, %d", m, k, i)
			}
		}
	}
}

// Messages that fill everything do not keep a read's answers away.
func TestReadBesideMessages(t *testing.T) {
	e, r := ends(t, 0, 1)
	for range 2 * (attach.MailSlots + device.MailboxDepth) {
		if _, err := e[0].Send(t.Context(), r[1], 0); err != nil && !errors.Is(err, rdma.ErrRefused) {
			t.Fatal(err)
		}
	}
	bad := r[0]
	bad.VA, bad.Len = 1<<40, 8 // nothing there: the answer says so
	tr, err := e[1].Read(t.Context(), rdma.ReadRequest{Dst: make([]byte, 8), Src: bad})
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Wait(t.Context()); !errors.Is(err, rdma.ErrAddress) {
		t.Errorf("%v", err)
	}
}

// Processes send messages to each other as fast as they can: each arrives once, and each refusal
// is told.
func TestMessageStorm(t *testing.T) {
	counts := map[int]int{2: 2000, 16: 40}
	if os.Getenv("PFD_SOAK") != "" {
		counts = map[int]int{2: 1_000_000, 16: 1_000_000 / 15}
	}
	for processes, count := range counts {
		t.Run(fmt.Sprint(processes), func(t *testing.T) { storm(t, processes, count) })
	}
}

func storm(t *testing.T, processes, count int) {
	socket, stop, err := startPFD()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	type child struct {
		cmd *exec.Cmd
		in  io.WriteCloser
		out *bufio.Scanner
	}
	var list []child
	var names []string
	line := func(c child) string {
		if !c.out.Scan() {
			return "error: no more output"
		}
		return c.out.Text()
	}
	for i := range processes {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d %d", rdma.StormEnv, socket, i%2, i, count))
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
			_ = cmd.Process.Kill() // fails if it has ended
			_ = cmd.Wait()
		})
		c := child{cmd, in, bufio.NewScanner(out)}
		name := line(c)
		if _, err := rdma.ParseRemote(name); err != nil {
			t.Fatal(err, name)
		}
		list, names = append(list, c), append(names, name)
	}
	began := time.Now()
	for _, c := range list {
		fmt.Fprintln(c.in, strings.Join(names, " "))
	}
	for i, c := range list {
		if s := line(c); s != "all" {
			t.Fatalf("process %d: %s", i, s)
		}
	}
	t.Logf("%d messages in %v", processes*(processes-1)*count, time.Since(began))
	for i, c := range list {
		c.in.Close()
		if c.out.Scan() {
			t.Errorf("process %d: %s", i, c.out.Text())
		}
		if err := c.cmd.Wait(); err != nil {
			t.Errorf("process %d: %v", i, err)
		}
	}
}
