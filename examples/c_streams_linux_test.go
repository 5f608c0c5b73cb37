package examples

import (
	"bufio"
	"bytes"
	"encoding/hex"
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
	"github.com/exanet/pfd/internal/golden"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/stream"
)

// streamer builds testdata/streams.c.
func streamer(t testing.TB, flags ...string) string {
	t.Helper()
	dir := public(t)
	library(t, dir, flags...)
	return compile(t, dir, filepath.Join("..", "testdata", "streams"), flags...)
}

// server is a run of testdata/streams.c that serves connections.
type server struct {
	cmd  *exec.Cmd
	addr string
}

func startServer(t testing.TB, bin, socket, node string) *server {
	t.Helper()
	s := &server{cmd: exec.Command(bin, socket, node, "serve")}
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

// The words of C are those of the document.
func TestStreamWordsOfC(t *testing.T) {
	want := golden.Document(t, filepath.Join("..", "docs", "streams.md"))
	for line := range strings.Lines(streams(t, streamer(t), "golden")) {
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
func TestStreamsOfC(t *testing.T) {
	bin, socket := streamer(t), start(t).Socket()
	sizes := [][2]int{{1, 400}, {48, 20_000}, {49, 30_000}, {4096, 500_000}, {65536, 3 << 20}, {5 << 20, 20 << 20}}
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

// A process connects to itself, and exchanges bytes without ever waiting.
func TestStreamsOfCToOneself(t *testing.T) {
	bin, socket := streamer(t), start(t).Socket()
	for _, size := range [][2]string{{"1", "200"}, {"48", "10000"}, {"5000", "500000"}, {"2000000", "8000000"}} {
		if said := streams(t, bin, socket, "0", "self", size[0], size[1]); said != "" {
			t.Errorf("at most %s bytes: %s", size[0], said)
		}
	}
}

// Calls that fail say why, and a forked child can use no stream of its parent.
func TestWrongStreamsOfC(t *testing.T) {
	bin, socket := streamer(t), start(t).Socket()
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
// taken for stopped while pfd is (stream.TestSlotsOfOldSpans, TestStoppedTogether).
func TestStreamMachineOfC(t *testing.T) {
	dir := public(t)
	library(t, dir)
	bin := compile(t, dir, filepath.Join("..", "testdata", "machine"))
	for _, part := range []string{"slots", "silence"} {
		if said := streams(t, bin, part); said != "" {
			t.Errorf("%s: %s", part, said)
		}
	}
}
