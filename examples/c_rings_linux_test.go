package examples

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/device"
)

func TestRings(t *testing.T) {
	dir, client := public(t), start(t)
	library(t, dir)
	bin := compile(t, dir, filepath.Join("..", "testdata", "rings"))
	t.Run("message", func(t *testing.T) { ringMessage(t, bin) })
	t.Run("wrong", func(t *testing.T) { wrongRings(t, bin, client.Socket()) })
	for _, nodes := range [][2]string{{"0", "1"}, {"0", "0"}} {
		t.Run(nodes[0]+nodes[1], func(t *testing.T) {
			first, second := startMessenger(t, bin, client.Socket(), nodes[0], "first", "500"), startMessenger(t, bin, client.Socket(), nodes[1], "second", "500")
			first.goOn(second.name)
			second.goOn(first.name)
			if said := slices.Concat(first.rest(t), second.rest(t)); len(said) != 0 {
				t.Errorf("%q", said)
			}
		})
	}
}

// libexanet writes the bytes of the document, but for the product.
func ringMessage(t *testing.T, bin string) {
	out, err := exec.CommandContext(t.Context(), bin, "golden", "7f0000001010", "20", "7f0000003004").Output()
	if err != nil {
		t.Fatal(err)
	}
	got, err := hex.DecodeString(string(out))
	if err != nil {
		t.Fatal(err)
	}
	r, err := attach.DecodeRing(got)
	if err != nil || !strings.HasPrefix(r.Product, "libexanet ") || r.VA != device.VA(0x7f0000001010) || r.Size != 32 || r.Arm != 0x7f0000003004 {
		t.Errorf("%x: %+v, %v", got, r, err)
	}
	text, err := os.ReadFile(filepath.Join("..", "docs", "attach.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```golden ring\n(.*?)```").FindSubmatch(text)
	if block == nil {
		t.Fatal("the document has no golden ring")
	}
	// The lines before and after the product.
	for _, line := range []string{"0:   " + spaced(got[:8]), "72:  " + spaced(got[72:80]), "80:  " + spaced(got[80:88]), "88:  " + spaced(got[88:96])} {
		if !strings.Contains(string(block[1]), line) {
			t.Errorf("the document has no line %q", line)
		}
	}
}

func spaced(b []byte) string { return strings.TrimSuffix(fmt.Sprintf("% x", b), " ") }

func wrongRings(t *testing.T, bin, socket string) {
	m := startMessenger(t, bin, socket, "0", "wrong")
	m.goOn(m.name)
	said := m.rest(t)
	for i, want := range []string{
		"0 bytes: a ring of 0 bytes at ", "half a word: ", "not aligned: ", "bytes of the mailbox: ", "past the end: pfd refused: ",
		"no ring: descriptor 0 is no ring", "lost: descriptors that pfd sent did not arrive", "overlaps: pfd refused: 8 bytes at ", "again: pfd refused: ", "full: the mailbox has 8 rings",
		"closed: ", "arm closed: ", "child makes: ", "child's: ", "child arms: ", "child closes: ",
	} {
		if i >= len(said) || !strings.HasPrefix(said[i], want) || strings.Contains(said[i], ", want ") {
			t.Errorf("line %d of %q, want %q", i, said, want)
			break
		}
	}
}

// BenchmarkRings measures a round of two processes that sleep on rings, beside one of two processes that sleep
// on a socket pair, in turns.
func BenchmarkRings(b *testing.B) {
	dir, client := public(b), start(b)
	library(b, dir)
	bin := compile(b, dir, filepath.Join("..", "testdata", "rings"))
	const rounds = "20000"
	number := func(text string) float64 {
		v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil {
			b.Fatal(err)
		}
		return v
	}
	var bare, rings []float64
	for b.Loop() {
		out, err := exec.CommandContext(b.Context(), bin, "pair", rounds).Output()
		if err != nil {
			b.Fatal(err)
		}
		bare = append(bare, number(string(out)))
		ping, pong := startMessenger(b, bin, client.Socket(), "0", "ping", rounds), startMessenger(b, bin, client.Socket(), "1", "pong", rounds)
		ping.goOn(pong.name)
		pong.goOn(ping.name)
		said := ping.rest(b)
		pong.rest(b)
		if len(said) != 1 {
			b.Fatalf("%q", said)
		}
		rings = append(rings, number(said[0]))
	}
	slices.Sort(bare)
	slices.Sort(rings)
	own, ring := bare[len(bare)/2], rings[len(rings)/2]
	b.ReportMetric(own, "pair-ns")
	b.ReportMetric(ring, "ring-ns")
	b.ReportMetric(ring/own, "ratio")
}

// A C program that sleeps on exanet_fd notices that pfd has ended.
func TestRingOfStoppedPFD(t *testing.T) {
	dir := public(t)
	library(t, dir)
	bin := compile(t, dir, filepath.Join("..", "testdata", "rings"))
	cfg := daemon.Default()
	cfg.Socket = filepath.Join(dir, "pfd.sock")
	machine, err := daemon.Emulated(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.New(cfg, machine)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	ready(t, cfg.Socket)
	m := startMessenger(t, bin, cfg.Socket, "0", "orphan")
	m.goOn(m.name)
	m.out.Scan()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if said := m.rest(t); len(said) != 1 || !strings.HasPrefix(said[0], "orphan: the attachment has ended") {
		t.Errorf("%q", said)
	}
}

// Two processes of examples/c/chat.c talk.
func TestChat(t *testing.T) {
	dir, client := public(t), start(t)
	library(t, dir)
	bin := compile(t, dir, "chat")
	if err := os.MkdirAll(filepath.Join(dir, "exanet"), 0o755); err != nil {
		t.Fatal(err)
	}
	type talker struct {
		cmd *exec.Cmd
		in  *os.File
		out *bufio.Scanner
	}
	var all [2]talker
	var names [2]string
	for i := range all {
		cmd := exec.CommandContext(t.Context(), bin, fmt.Sprint(i))
		cmd.Env = append(os.Environ(), "RUNTIME_DIRECTORY="+filepath.Dir(client.Socket()))
		cmd.Stderr = os.Stderr
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdin = r
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		all[i] = talker{cmd, w, bufio.NewScanner(out)}
		all[i].out.Scan()
		names[i] = all[i].out.Text()
	}
	for i := range all {
		fmt.Fprintln(all[i].in, names[1-i])
	}
	long := strings.Repeat("a line of some length, ", 100)
	for n := range 20 {
		for i := range all {
			want := fmt.Sprint(n, " from ", i, " ", long[:n*n*5])
			fmt.Fprintln(all[i].in, want)
			if all[1-i].out.Scan(); all[1-i].out.Text() != want {
				t.Fatalf("%q, want %q", all[1-i].out.Text(), want)
			}
		}
	}
	for i := range all {
		_ = all[i].in.Close()
		if err := all[i].cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}
