package examples

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/golden"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/stream"
)

// streamers are the programs of testdata that have streams.
type streamers struct{ streams, ends, hostile string }

// buildStreamers builds them.
func buildStreamers(t testing.TB, flags ...string) streamers {
	t.Helper()
	dir := public(t)
	library(t, dir, flags...)
	program := func(name string) string { return compile(t, dir, filepath.Join("..", "testdata", name), flags...) }
	return streamers{program("streams"), program("streamends"), program("hostilestreams")}
}

// server is a run of testdata/streams.c that serves connections.
type server struct {
	cmd  *exec.Cmd
	addr string
}

// It runs until the test ends, or is killed.
func startServer(t testing.TB, bin, socket, node string) *server {
	t.Helper()
	return startServing(t, bin, socket, node, "serve")
}

func startServing(t testing.TB, bin string, args ...string) *server {
	t.Helper()
	s := &server{cmd: exec.Command(bin, args...)}
	s.cmd.Stderr = os.Stderr
	in, err := s.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	s.addr = lines.Text()
	t.Cleanup(func() {
		in.Close()
		_ = s.cmd.Wait() // it may have been killed
	})
	if _, err := stream.ParseAddr(s.addr); err != nil {
		t.Fatal(err)
	}
	return s
}

// streams runs testdata/streams.c and returns what it says.
func streams(t testing.TB, bin string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), bin, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%q: %v: %s", args, err, out)
	}
	return string(out)
}

func attachGo(t testing.TB, socket string, node device.NodeID) *rdma.Endpoint {
	t.Helper()
	e, err := rdma.Attach(t.Context(), rdma.Options{Socket: socket, Node: node, AcceptGroup: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// echoGo serves connections in Go and returns the address.
func echoGo(t testing.TB, e *rdma.Endpoint) string {
	t.Helper()
	l, err := stream.Listen(e, ":80")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
					_, _ = io.Copy(c, c)
				}
				c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

// exchange sends bytes to an echo and checks those that come back.
func exchange(t *testing.T, e *rdma.Endpoint, addr string, most, total int) {
	t.Helper()
	c, err := stream.Dial(t.Context(), e, addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	if _, err := c.Write([]byte("e")); err != nil {
		t.Error(err)
	}
	want := make([]byte, total)
	r := rand.New(rand.NewPCG(uint64(most), uint64(total)))
	for i := range want {
		want[i] = byte(r.Uint32())
	}
	var g sync.WaitGroup
	g.Go(func() {
		for b := want; len(b) > 0; {
			n := min(len(b), 1+r.IntN(most))
			if _, err := c.Write(b[:n]); err != nil {
				t.Error(err)
				return
			}
			b = b[n:]
		}
		if err := c.CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want) {
		t.Errorf("writes of at most %d bytes: %d bytes of %d came back, or others, %v", most, len(got), total, err)
	}
	g.Wait()
}

func TestStreamsOfC(t *testing.T) {
	b := buildStreamers(t)
	for name, test := range map[string]func(*testing.T, streamers){
		"words": streamWords, "exchange": exchangeStreams, "methods": streamsByMethods, "oneself": streamsToOneself, "wrong": wrongStreams, "loss": streamsWithLoss,
		"loop": streamsInALoop, "close": closeStreams, "peers": streamsOfPeersThatEnd, "no pfd": streamsWithoutPFD, "stopped pfd": streamsOfStoppedPFD, "hostile": hostilePeers,
	} {
		t.Run(name, func(t *testing.T) { test(t, b) })
	}
}

// The words of C are those of the document.
func streamWords(t *testing.T, b streamers) {
	want := golden.Document(t, filepath.Join("..", "docs", "streams.md"))
	for line := range strings.Lines(streams(t, b.streams, "golden")) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		got, err := hex.DecodeString(text)
		if err != nil || !bytes.Equal(got, want[name]) {
			t.Errorf("%s: %x, the document has %x", line, got, want[name])
		}
		delete(want, name)
	}
	if len(want) != 0 {
		t.Errorf("the C program has not %v", want)
	}
}

// Bytes go between programs in C, and between one in C and one in Go, within a node and between two.
func exchangeStreams(t *testing.T, b streamers) {
	bin, socket := b.streams, start(t).Socket()
	sizes := [][2]int{{1, 400}, {48, 20_000}, {49, 30_000}, {4096, 500_000}, {65536, 3 << 20}, {5 << 20, 8 << 20}}
	for _, node := range []string{"0", "1"} {
		s := startServer(t, bin, socket, node)
		e, other := attachGo(t, socket, 0), attachGo(t, socket, device.NodeID(node[0]-'0'))
		addr := echoGo(t, other)
		for _, size := range sizes {
			most, total := fmt.Sprint(size[0]), fmt.Sprint(size[1])
			for name, to := range map[string]string{"C": s.addr, "Go": addr} {
				if said := streams(t, bin, socket, "0", "exchange", to, most, total, "7"); said != "" {
					t.Errorf("C to %s on node %s, at most %s bytes: %s", name, node, most, said)
				}
			}
			exchange(t, e, s.addr, size[0], size[1])
		}
	}
}

// Streams with each method of paging in.
func streamsByMethods(t *testing.T, b streamers) {
	socket := start(t).Socket()
	for method := pagein.GUP; method <= pagein.Populate; method++ {
		t.Setenv("METHOD", fmt.Sprint(uint8(method)))
		s := startServer(t, b.streams, socket, "1")
		for most, total := range map[string]string{"48": "20000", "300000": "3000000"} {
			if said := streams(t, b.streams, socket, "0", "exchange", s.addr, most, total, "7"); said != "" {
				t.Errorf("%v, at most %s bytes: %s", method, most, said)
			}
		}
	}
}

// A process connects to itself, and exchanges bytes without ever waiting.
func streamsToOneself(t *testing.T, b streamers) {
	bin, socket := b.streams, start(t).Socket()
	for _, size := range [][2]string{{"1", "200"}, {"48", "10000"}, {"5000", "500000"}, {"2000000", "8000000"}} {
		if said := streams(t, bin, socket, "0", "self", size[0], size[1]); said != "" {
			t.Errorf("at most %s bytes: %s", size[0], said)
		}
	}
}

// Calls that fail say why, and a forked child can use no stream of its parent.
func wrongStreams(t *testing.T, b streamers) {
	bin, socket := b.streams, start(t).Socket()
	s := startServer(t, bin, socket, "1")
	silent := attachGo(t, socket, 1).Info().Interface // its process has no streams
	nobody := strings.TrimSuffix(s.addr, "80") + "81"
	said := streams(t, bin, socket, "0", "wrong", s.addr, nobody, fmt.Sprintf("exanet:1/%d/80", silent))
	lines := strings.Split(said, "\n")
	if len(lines) < 60 {
		t.Errorf("%d lines: %s", len(lines), said)
	}
	for _, line := range lines {
		if strings.Contains(line, ", want ") {
			t.Error(line)
		}
	}
	for _, want := range []string{
		"text: \"exanet:1/15/80\" is not of the form exanet:NODE/INTERFACE/PORT, with an interface from 16 to 31\n",
		"no port: connect to " + nobody + ": nobody listens on the port\n",
		"no process: connect to exanet:1/31/80: no process that admits this one has the interface\n",
		"no answer in time: connect to " + fmt.Sprintf("exanet:1/%d/80", silent) + ": no answer within 1 ms\n",
		"no answer: connect to " + fmt.Sprintf("exanet:1/%d/80", silent) + ": no answer within 5 s\n",
		"receive: receive from " + nobody + ": nobody listens on the port\n",
		"in use: listen: another listener has port 7\n",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q: %s", want, said)
		}
	}
}

// The receiver of libexanet does not mistake the span of long ago in a slot for one that cannot be, and no peer is
// taken for stopped while pfd is (stream.TestSlotsOfOldSpans, TestStoppedTogether). A reset loses nothing that has
// arrived (stream.TestPeerEndsAfterClose).
func TestStreamMachineOfC(t *testing.T) {
	dir := public(t)
	library(t, dir)
	bin := compile(t, dir, filepath.Join("..", "testdata", "machine"))
	for _, part := range []string{"slots", "silence", "unsent", "reset"} {
		if said := streams(t, bin, part); said != "" {
			t.Errorf("%s: %s", part, said)
		}
	}
}

// Links that lose frames, and so messages: connections come about, and their bytes arrive.
func streamsWithLoss(t *testing.T, b streamers) {
	bin, socket := b.streams, startLossy(t, 0.01).Socket()
	s, e := startServer(t, bin, socket, "1"), attachGo(t, socket, 0)
	for i, most := range []string{"30", "48", "3000", "20000"} {
		if said := streams(t, bin, socket, "0", "exchange", s.addr, most, fmt.Sprint(400*(i+1)*(i+1)*(i+1)), "3"); said != "" {
			t.Errorf("at most %s bytes: %s", most, said)
		}
	}
	exchange(t, e, s.addr, 1000, 30_000)
}

// Programs of one thread that never waits in a call, and sleeps in poll(2) only.
func streamsInALoop(t *testing.T, b streamers) {
	socket := start(t).Socket()
	for _, c := range [][3]string{{"1", "1", "10"}, {"1", "8", "200000"}, {"0", "16", "30000"}} {
		s := startServing(t, b.ends, socket, c[0], "loop", c[1])
		if said := streams(t, b.ends, socket, "0", "client", s.addr, c[1], c[2]); said != "" {
			t.Errorf("%v: %s", c, said)
		}
	}
	silent := attachGo(t, socket, 1).Info().Interface // its process has no streams
	addr := fmt.Sprintf("exanet:1/%d/80", silent)
	if said, want := streams(t, b.ends, socket, "0", "late", addr), "-110: receive from "+addr+": no answer within 5 s\n"; said != want {
		t.Errorf("%q, want %q", said, want)
	}
}

// Bytes that were sent before close arrive, although the program ends at once. A thousand connections leave nothing.
func closeStreams(t *testing.T, b streamers) {
	socket := start(t).Socket()
	e := attachGo(t, socket, 1)
	l, err := stream.Listen(e, ":81")
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 48, 5000, 900_000} {
		got := make(chan []byte, 1)
		go func() {
			var b []byte
			if c, err := l.Accept(); err == nil {
				b, _ = io.ReadAll(c)
				c.Close()
			}
			got <- b
		}()
		if said := streams(t, b.ends, socket, "0", "last", l.Addr().String(), fmt.Sprint(size)); said != "" {
			t.Error(said)
		}
		all := <-got
		for i := range all {
			if all[i] != byte(i*7) {
				t.Fatalf("byte %d of %d is wrong", i, size)
			}
		}
		if len(all) != size {
			t.Errorf("%d bytes of %d have arrived", len(all), size)
		}
	}
	for _, addr := range []string{startServer(t, b.streams, socket, "1").addr, echoGo(t, e)} {
		if said := streams(t, b.ends, socket, "0", "churn", addr, "1000"); said != "" {
			t.Errorf("connections to %s have left %s", addr, said)
		}
	}
}

// The peer of a C program ends, and stops.
func streamsOfPeersThatEnd(t *testing.T, b streamers) {
	socket := start(t).Socket()
	for _, part := range []string{"echoes", "writes", "reads", "idles"} {
		s := startServer(t, b.streams, socket, "1")
		said := resets(t, b, socket, "0", s.addr, part, s.cmd.Process)
		if !strings.Contains(said, "receive: -104: receive from "+s.addr+": ") || !strings.Contains(said, "send: -104\n") {
			t.Errorf("it %s: %s", part, said)
		}
	}
	s := startServer(t, b.streams, socket, "1")
	if said := streams(t, b.ends, socket, "0", "stop", s.addr, fmt.Sprint(s.cmd.Process.Pid)); said != "" {
		t.Error(said)
	}
}

// resets runs a program whose stream is reset: when bytes have gone both ways, a process is killed.
func resets(t *testing.T, b streamers, socket, node, addr, part string, killed *os.Process) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), b.ends, socket, node, "reset", addr, part)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	if line, err := r.ReadString('\n'); err != nil || line != "busy\n" {
		t.Errorf("%q, %v", line, err)
	}
	if err := killed.Kill(); err != nil {
		t.Error(err)
	}
	said, err := io.ReadAll(r)
	if err := errors.Join(err, cmd.Wait()); err != nil {
		t.Error(err)
	}
	return string(said)
}

// pfd is stopped and goes on.
func streamsOfStoppedPFD(t *testing.T, b streamers) {
	socket, pfd := startProcess(t, 2, -1)
	s := startServer(t, b.streams, socket, "1")
	if said := streams(t, b.ends, socket, "0", "hold", s.addr, fmt.Sprint(pfd.Pid)); said != "" {
		t.Error(said)
	}
	for _, addr := range []string{s.addr, "-"} {
		if said := streams(t, b.ends, socket, "0", "leave", addr, fmt.Sprint(pfd.Pid)); said != "" {
			t.Errorf("leaving %s: %s", addr, said)
		}
	}
}

// startKilled runs a pfd of one node in another process, which the test kills.
func startKilled(t *testing.T, socket string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pfd := exec.Command(self, daemonCommand, socket, "1")
	pfd.Stderr = t.Output()
	if err := pfd.Start(); err != nil {
		t.Fatal(err)
	}
	ready(t, socket)
	return pfd
}

// pfd is killed.
func streamsWithoutPFD(t *testing.T, b streamers) {
	for _, part := range []string{"echoes", "idles"} {
		socket := filepath.Join(public(t), "pfd.sock")
		pfd := startKilled(t, socket)
		s := startServer(t, b.streams, socket, "0")
		said := resets(t, b, socket, "0", s.addr, part, pfd.Process)
		_ = pfd.Wait() // it was killed
		if !strings.Contains(said, "receive: -104: receive from "+s.addr+": ") || !strings.Contains(said, "send: -104\n") {
			t.Errorf("it %s: %s", part, said)
		}
	}
}

// A peer writes and sends what cannot be.
func hostilePeers(t *testing.T, b streamers) {
	socket := start(t).Socket()
	if said := streams(t, b.hostile, socket, startServer(t, b.streams, socket, "1").addr); said != "" {
		t.Error(said)
	}
}

// examples/c/echo.c sends back what arrives, more than the rings of a stream hold.
func TestEcho(t *testing.T) {
	dir, client := public(t), start(t)
	library(t, dir)
	bin := compile(t, dir, "echo")
	run := func(args ...string) *exec.Cmd {
		c := exec.CommandContext(t.Context(), bin, args...)
		c.Env, c.Stderr = append(os.Environ(), "RUNTIME_DIRECTORY="+filepath.Dir(client.Socket())), os.Stderr
		return c
	}
	server := run("1")
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(server.Process.Kill(), server.Wait()) }()
	line := bufio.NewScanner(out)
	line.Scan()
	want := bytes.Repeat([]byte("all bytes, "), 500_000)
	talk := run("0", line.Text())
	talk.Stdin = bytes.NewReader(want)
	if got, err := talk.Output(); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d came back, or others, %v", len(got), len(want), err)
	}
}

// The library has no memory error, no leak and no data race, by the sanitizers.
func TestSanitizedStreams(t *testing.T) {
	for _, flags := range [][]string{{"-fsanitize=address,undefined", "-fno-omit-frame-pointer"}, {"-fsanitize=thread"}} {
		t.Run(flags[0], func(t *testing.T) {
			b, socket := buildStreamers(t, flags...), start(t).Socket()
			s := startServer(t, b.streams, socket, "1")
			loop := startServing(t, b.ends, socket, "1", "loop", "4")
			for _, args := range [][]string{
				{b.streams, socket, "0", "exchange", s.addr, "48", "5000", "1"}, {b.streams, socket, "0", "exchange", s.addr, "100000", "2000000", "1"},
				{b.streams, socket, "0", "self", "3000", "100000"}, {b.ends, socket, "0", "client", loop.addr, "4", "100000"},
				{b.ends, socket, "0", "stop", s.addr, fmt.Sprint(s.cmd.Process.Pid)}, {b.ends, socket, "0", "last", s.addr, "100000"},
				{b.hostile, socket, s.addr},
			} {
				if said := streams(t, args[0], args[1:]...); said != "" {
					t.Errorf("%q: %s", args, said)
				}
			}
		})
	}
}
