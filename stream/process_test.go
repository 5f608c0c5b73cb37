package stream_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/stream"
)

// childEnv names the socket and the node of a process that listens, and the address that it dials
// if it has one.
const childEnv = "STREAM_TEST_CHILD"

// TestMain lets the test binary be the other processes of the tests.
func TestMain(m *testing.M) {
	for env, run := range map[string]func(string) error{childEnv: child, pfdEnv: runPFD} {
		if args := os.Getenv(env); args != "" {
			if err := run(args); err != nil {
				fmt.Println("error:", err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

// child serves connections until it is killed or its standard input ends. The first byte of each
// says how.
func child(args string) error {
	var socket, dial string
	var node device.NodeID
	if n, err := fmt.Sscan(args, &socket, &node, &dial); n < 2 {
		return err
	}
	ep, err := rdma.Attach(context.Background(), rdma.Options{Socket: socket, Node: node, AcceptGroup: true})
	if err != nil {
		return err
	}
	l, err := stream.Listen(ep, ":80")
	if err != nil {
		return err
	}
	if dial != "" {
		c, err := stream.Dial(context.Background(), ep, dial)
		if err != nil {
			return err
		}
		go play(c)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go play(c)
		}
	}()
	fmt.Println(l.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return ep.Close()
}

// The parts that a child plays.
const (
	echoes = "echoes"
	writes = "writes"
	reads  = "reads"
	idles  = "idles"
)

func play(c io.ReadWriter) {
	part := make([]byte, 1)
	if _, err := io.ReadFull(c, part); err != nil {
		return
	}
	switch part[0] {
	case echoes[0]:
		_, _ = io.Copy(c, c)
	case writes[0]:
		for err := error(nil); err == nil; {
			_, err = c.Write(make([]byte, 10_000))
		}
	case reads[0]:
		_, _ = io.Copy(io.Discard, c)
	}
}

// process is a child.
type process struct {
	cmd  *exec.Cmd
	addr string
}

func startChild(t *testing.T, socket string, node device.NodeID, dial string) process {
	t.Helper()
	cmd, says := startSelf(t, fmt.Sprintf("%s=%s %d %s", childEnv, socket, node, dial))
	if _, err := stream.ParseAddr(says); err != nil {
		t.Fatal(says)
	}
	return process{cmd, says}
}

// startSelf starts this program as another process of a test, and returns the first line that it writes.
func startSelf(t *testing.T, env string) (cmd *exec.Cmd, says string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(exe)
	cmd.Env = append(os.Environ(), env)
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
		_ = cmd.Process.Signal(syscall.SIGCONT) // fails if it has ended
		in.Close()
		_ = cmd.Wait() // also after a kill
	})
	s := bufio.NewScanner(out)
	if !s.Scan() {
		t.Fatal("the child says nothing")
	}
	return cmd, s.Text()
}

func (p process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// exchange writes and reads without end, and returns the errors. busy is closed when bytes have
// gone both ways, or as far as the part permits.
func exchange(c *stream.Conn, part string, busy chan<- struct{}) (read, wrote error) {
	var g, started sync.WaitGroup
	once := func() func() { started.Add(1); return sync.OnceFunc(started.Done) }
	if part == idles { // a beat finds that the peer has ended
		close(busy)
		_, read = c.Read(make([]byte, 1))
		_, wrote = c.Write(make([]byte, 1))
		return read, wrote
	}
	r, w := once(), once()
	if part == reads {
		r()
	}
	g.Go(func() {
		b := make([]byte, 5000)
		for read == nil {
			if _, read = c.Read(b); read == nil {
				r()
			}
		}
		r()
	})
	g.Go(func() {
		b := make([]byte, 7000)
		for wrote == nil {
			if _, wrote = c.Write(b); wrote == nil {
				w()
			}
		}
		w()
	})
	started.Wait()
	close(busy)
	g.Wait()
	return read, wrote
}

// The peer is killed at different steps: both directions are reset, and connections to others go
// on.
func TestPeerIsKilled(t *testing.T) {
	socket := startPFD(t)
	ep := attach(t, socket, 0)
	other := startChild(t, socket, 1, "")
	witness, err := stream.Dial(t.Context(), ep, other.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer witness.Close()
	if _, err := witness.Write([]byte(echoes[:1])); err != nil {
		t.Fatal(err)
	}
	l := listen(t, ep, ":80")
	for _, dials := range []bool{false, true} {
		for _, part := range []string{echoes, writes, reads, idles, "unaccepted"} {
			to := ""
			if dials {
				to = l.Addr().String()
			}
			p := startChild(t, socket, 1, to)
			var c *stream.Conn
			if dials {
				if part == "unaccepted" {
					p.signal(t, syscall.SIGKILL)
				}
				got, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				c = got.(*stream.Conn)
			} else if c, err = stream.Dial(t.Context(), ep, p.addr); err != nil {
				t.Fatal(err)
			}
			busy := make(chan struct{})
			go func() {
				<-busy
				_ = p.cmd.Process.Kill() // once more for those unaccepted
			}()
			if _, err := c.Write([]byte(part[:1])); err != nil && part != "unaccepted" {
				t.Fatal(err)
			}
			part := part
			if part == "unaccepted" {
				part = idles
			}
			read, wrote := exchange(c, part, busy)
			if !errors.Is(read, syscall.ECONNRESET) || !errors.Is(wrote, syscall.ECONNRESET) {
				t.Errorf("the child dials: %v, it %s: read %v, wrote %v", dials, part, read, wrote)
			}
			c.Close()
			if _, err := witness.Write([]byte("still")); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 5)
			if _, err := io.ReadFull(witness, b); err != nil || string(b) != "still" {
				t.Fatalf("%q, %v", b, err)
			}
		}
	}
}

// A connection loses no byte while its peer is stopped, and connections to other peers go on.
func TestPeerIsStopped(t *testing.T) {
	socket := startPFD(t)
	ep := attach(t, socket, 0)
	p := startChild(t, socket, 1, "")
	c, err := stream.Dial(t.Context(), ep, p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(echoes[:1])); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 2<<20+300_000)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range want {
		want[i] = byte(r.Uint32())
	}
	p.signal(t, syscall.SIGSTOP)
	sent := 0
	for err == nil || sent == 0 && errors.Is(err, os.ErrDeadlineExceeded) { // also before the first byte
		if err := c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		var n int
		n, err = c.Write(want[sent:min(len(want), sent+30_000)])
		sent += n
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) || sent == 0 || sent == len(want) {
		t.Fatalf("%d bytes, %v", sent, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if c, err := stream.Dial(ctx, ep, p.addr); err == nil {
		c.Close()
		t.Error("a stopped process has answered")
	} else if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	p.signal(t, syscall.SIGCONT)
	if err := c.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	go func() {
		if _, err := c.Write(want[sent:]); err != nil {
			t.Error(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Error(err)
		}
	}()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("other bytes than were sent, %v", err)
	}
	second, err := stream.Dial(t.Context(), ep, p.addr)
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}

// Links that lose frames, and so messages: connections come about, and their bytes arrive.
func TestLoss(t *testing.T) {
	socket := startLossy(t, 0.01)
	from, to := attach(t, socket, 0), attach(t, socket, 1)
	l := listen(t, to, ":80")
	var g sync.WaitGroup
	for i := range 12 {
		a, b := pair(t, from, l)
		g.Go(func() {
			_, _ = io.Copy(b, b)
			_ = b.CloseWrite()
		})
		r := rand.New(rand.NewPCG(uint64(i), 1))
		want := make([]byte, r.IntN(30_000))
		for i := range want {
			want[i] = byte(r.Uint32())
		}
		g.Go(func() {
			for b := want; len(b) > 0; {
				n := min(len(b), 1+r.IntN(1<<r.IntN(15)))
				if _, err := a.Write(b[:n]); err != nil {
					t.Error(err)
					return
				}
				b = b[n:]
			}
			if err := a.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		g.Go(func() {
			if got, err := io.ReadAll(a); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
			}
			a.Close()
			b.Close()
		})
	}
	g.Wait()
}
