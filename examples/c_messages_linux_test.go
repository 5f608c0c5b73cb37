package examples

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// messenger is a run of testdata/messages.c.
type messenger struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	name string // its remote's text
}

func startMessenger(t testing.TB, bin, socket, node string, args ...string) *messenger {
	t.Helper()
	m := &messenger{cmd: exec.CommandContext(t.Context(), bin, append([]string{socket, node}, args...)...)}
	m.cmd.Stderr = os.Stderr
	var err error
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m.out = bufio.NewScanner(out)
	m.out.Scan()
	m.name = m.out.Text()
	return m
}

// goOn names the messenger's peer.
func (m *messenger) goOn(peer string) { fmt.Fprintln(m.in, peer) }

// rest returns what the messenger says until its end.
func (m *messenger) rest(t testing.TB) (lines []string) {
	t.Helper()
	for m.out.Scan() {
		lines = append(lines, m.out.Text())
	}
	if err := m.cmd.Wait(); err != nil {
		t.Errorf("%v: %v: %q", m.cmd.Args, err, lines)
	}
	return lines
}

func TestMessages(t *testing.T) {
	dir, client := public(t), start(t)
	library(t, dir)
	bin := compile(t, dir, filepath.Join("..", "testdata", "messages"))
	t.Run("exchanged", func(t *testing.T) { exchangeMessages(t, bin, client.Socket()) })
	t.Run("refused", func(t *testing.T) { refuseMessages(t, bin, client.Socket()) })
	t.Run("wrong", func(t *testing.T) { wrongMessages(t, bin, client.Socket()) })
}

// Two C programs, and a C program and a Go program, exchange messages within a node and between two.
func exchangeMessages(t *testing.T, bin, socket string) {
	for _, nodes := range [][2]string{{"0", "1"}, {"0", "0"}} {
		t.Run(nodes[0]+nodes[1], func(t *testing.T) {
			echo, ping := startMessenger(t, bin, socket, nodes[1], "echo"), startMessenger(t, bin, socket, nodes[0], "ping", "3000")
			echo.goOn(ping.name)
			ping.goOn(echo.name)
			if said := slices.Concat(ping.rest(t), echo.rest(t)); len(said) != 0 {
				t.Errorf("%q", said)
			}

			echo = startMessenger(t, bin, socket, nodes[1], "echo")
			e, err := rdma.Attach(t.Context(), rdma.Options{Socket: socket, AcceptGroup: true})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			own, err := e.ExportVA(4096, 1)
			if err != nil {
				t.Fatal(err)
			}
			echo.goOn(own.String())
			peer, err := rdma.ParseRemote(echo.name)
			if err != nil {
				t.Fatal(err)
			}
			for i := 1000; i >= 0; i-- {
				words := []uint64{3 | uint64(i)<<24, uint64(i), 3, 4, 5, 6, 7, 8}[:2+i%7]
				if _, err := e.Send(t.Context(), peer, words...); err != nil {
					t.Fatal(err)
				}
				m, err := e.Receive(t.Context())
				if err != nil || !slices.Equal(m.Words[:m.N], words) || m.PDID != peer.PDID || m.Interface != peer.Interface {
					t.Fatalf("%+v, %v, want %v", m, err, words)
				}
			}
			if said := echo.rest(t); len(said) != 0 {
				t.Errorf("%q", said)
			}
		})
	}
}

// A C program is told each refusal of a receiver that takes nothing: at once, or late.
func refuseMessages(t *testing.T, bin, socket string) {
	for _, node := range []device.NodeID{0, 1} {
		e, err := rdma.Attach(t.Context(), rdma.Options{Socket: socket, Node: node, AcceptGroup: true})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		own, err := e.ExportVA(4096, 1)
		if err != nil {
			t.Fatal(err)
		}
		flood := startMessenger(t, bin, socket, "0", "flood", "1500")
		flood.goOn(own.String())
		if said := flood.rest(t); !slices.Equal(said, []string{"1403 refused"}) {
			t.Errorf("node %d: %q", node, said)
		}
		for range 97 {
			if _, err := e.Receive(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		// Back: its process has ended.
		to, err := rdma.ParseRemote(flood.name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = e.Send(t.Context(), to, 0); err == nil {
			_, err = e.Receive(t.Context())
		}
		if !errors.Is(err, rdma.ErrRefused) {
			t.Errorf("node %d: %v", node, err)
		}
	}
}

func wrongMessages(t *testing.T, bin, socket string) {
	peer := startMessenger(t, bin, socket, "1", "echo")
	m := startMessenger(t, bin, socket, "0", "wrong")
	m.goOn(peer.name)
	want := []string{
		"0 words: a message of 0 words: it has 1 to 8",
		"9 words: a message of 9 words: it has 1 to 8",
		"oneself: a message to its own sender",
		"wired: the first word is 0x4: its bits [17:2] are the node's and must be zero",
		"kind: the first word is 0x40000: its bits [23:18] are a kind that is reserved",
		"unknown: the remote does not name its process's interface: take the text of a process of this version",
		"driver: interface 15 is no process's: 16 to 31 are",
		"node: node 0x400000 has more than 22 bits",
		"nowhere: message 1 to node 77 was refused:",
		"slot: message 2 to node 0 was refused:",
		"timeout: no message has arrived in time",
		"child sends: the attachment is that of the process that forked this one",
		"child receives: the attachment is that of the process that forked this one",
	}
	said := m.rest(t)
	for i, w := range want {
		if i >= len(said) || !strings.HasPrefix(said[i], w) {
			t.Errorf("it says %q, want %q", said[min(i, len(said)):min(i+1, len(said))], w)
		}
	}
	peer.in.Close()
	_ = peer.cmd.Wait() // without a peer's name it ends with an error
}
