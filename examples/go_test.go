package examples

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// program builds one of the Go programs.
func program(t *testing.T, name string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), name)
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./"+name).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}

// background starts a program that is interrupted at the end of the test, and returns its output
// line by line.
func background(t *testing.T, c *exec.Cmd) *bufio.Scanner {
	t.Helper()
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := c.Wait(); err != nil {
			t.Errorf("%v: %v: %s", c.Args, err, stderr.String())
		}
	})
	return bufio.NewScanner(out)
}

func line(t *testing.T, s *bufio.Scanner) string {
	t.Helper()
	if !s.Scan() {
		t.Fatalf("the program says nothing more: %v", s.Err())
	}
	return s.Text()
}

func TestPutget(t *testing.T) {
	bin, client := program(t, "putget"), start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	target := background(t, exec.Command(bin, "-socket", client.Socket(), "target"))
	remote := line(t, target)
	for _, c := range []struct {
		args []string
		says string
		ok   bool
	}{
		{[]string{"get", remote}, "no line has arrived yet", false},
		{[]string{"put", remote, "hello, absent page"}, "", true},
		{[]string{"get", remote}, "hello, absent page\n", true},
		{[]string{"get", "nobody"}, "not the name of remote memory", false},
		{[]string{"put", remote, strings.Repeat("x", 4097)}, "4097 bytes at offset 4096 of 8192 exported bytes", false},
		{nil, "usage:", false},
	} {
		out, err := exec.CommandContext(ctx, bin, append([]string{"-socket", client.Socket()}, c.args...)...).CombinedOutput()
		if (err == nil) != c.ok || c.ok && string(out) != c.says || !strings.Contains(string(out), c.says) {
			t.Errorf("%v: %v, %s", c.args, err, out)
		}
	}
	if got := line(t, target); got != "hello, absent page" {
		t.Errorf("the target says %q", got)
	}
}

func TestPingpong(t *testing.T) {
	bin, client := program(t, "pingpong"), start(t)
	for _, size := range []string{"1", "100000"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		out, err := exec.CommandContext(ctx, bin, "-socket", client.Socket(), "-rounds", "50", "-size", size).CombinedOutput()
		cancel()
		if err != nil || !strings.HasPrefix(string(out), "50 rounds of "+size+" bytes, ") {
			t.Errorf("%v, %s", err, out)
		}
	}
}

func TestScatter(t *testing.T) {
	bin, client := program(t, "scatter"), start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, bin, "-socket", client.Socket()).CombinedOutput()
	if err != nil || string(out) != "300 columns of 100 rows by 3 workers, 0 sums wrong\n" {
		t.Errorf("%v, %s", err, out)
	}
}

// A gather list is written into absent memory, and from absent memory, with more sources than
// there are channels; its completion words arrive when every byte has.
func TestGatherIntoAbsentMemory(t *testing.T) {
	client := start(t)
	for _, method := range []rdma.Method{rdma.MethodGUP, rdma.MethodTouch, rdma.MethodUFFD} {
		t.Run(method.String(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var eps [2]*rdma.Endpoint
			for i := range eps {
				ep, err := rdma.Attach(ctx, rdma.Options{Socket: client.Socket(), Node: device.NodeID(i), Method: method})
				if err != nil {
					t.Fatal(err)
				}
				defer ep.Close()
				eps[i] = ep
			}
			const sources, size = 100, 20000
			src, err := eps[0].Alloc(2 * sources * size)
			if err != nil {
				t.Fatal(err)
			}
			dst, err := eps[1].Alloc(16 + sources*size)
			if err != nil {
				t.Fatal(err)
			}
			var list [][]byte
			var want []byte
			for i := range sources {
				b := src.Bytes()[2*i*size:][:size]
				if i%10 != 0 { // every tenth stays absent: zeros
					for j := range b {
						b[j] = byte(i + j)
					}
				}
				list = append(list, b)
			}
			remote, err := eps[1].Export(dst.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			last, err := rdma.Word(dst.Bytes(), 8)
			if err != nil {
				t.Fatal(err)
			}
			queue := eps[0].NewQueue()
			if _, err := eps[0].Write(ctx, rdma.WriteRequest{
				Gather: list, Dst: remote, Offset: 16, Queue: queue, Notify: &rdma.Notification{Last: 1},
			}); err != nil {
				t.Fatal(err)
			}
			if err := eps[1].WaitNotification(ctx, last, 1); err != nil {
				t.Fatal(err)
			}
			for _, b := range list {
				want = append(want, b...)
			}
			if !bytes.Equal(dst.Bytes()[16:], want) {
				t.Error("the words came, and not every byte")
			}
			ended := 0
			for _, err := range queue.Finished(ctx) {
				ended++
				if err != nil {
					t.Error(err)
				}
			}
			if ended != 1 {
				t.Errorf("the queue gives %d handles, want 1", ended)
			}
		})
	}
}
