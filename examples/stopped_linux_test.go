package examples

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/rdma"
)

// Commands of the test binary itself.
const (
	daemonCommand  = "pfd-of-its-own"         // SOCKET NODES: a pfd in another process
	stoppedCommand = "go-client-of-a-stopped" // the arguments of testdata/stopped.c
)

func runCommand(command string, args []string) error {
	switch {
	case command == daemonCommand && len(args) == 2:
		return runDaemon(args[0], args[1])
	case command == stoppedCommand && len(args) == 4:
		return stoppedClient(args[0], args[1], args[2], args[3])
	}
	return fmt.Errorf("%d arguments", len(args))
}

// runDaemon runs a pfd until SIGTERM.
func runDaemon(socket, nodes string) error {
	cfg := daemon.Default()
	cfg.Socket = socket
	var err error
	if cfg.Nodes, err = strconv.Atoi(nodes); err != nil {
		return err
	}
	m, err := daemon.Emulated(cfg)
	if err != nil {
		return err
	}
	d, err := daemon.New(cfg, m)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return d.Run(ctx)
}

// startProcess runs a pfd in another process, on one processor if cpu is not negative.
func startProcess(t *testing.T, nodes, cpu int) (socket string, p *os.Process) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(public(t), "pfd.sock")
	c := exec.Command(self, daemonCommand, socket, fmt.Sprint(nodes))
	if cpu >= 0 {
		c = exec.Command("taskset", "-c", fmt.Sprint(cpu), self, daemonCommand, socket, fmt.Sprint(nodes))
	}
	c.Stderr = t.Output()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := errors.Join(c.Process.Signal(syscall.SIGCONT), c.Process.Signal(syscall.SIGTERM), c.Wait())
		if err != nil {
			t.Error(err)
		}
	})
	err = until("listen", func() bool {
		c, err := net.Dial("unixpacket", socket+attach.SocketSuffix)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return socket, c.Process
}

// absentPages is how many pages command absent writes, one after the other.
const absentPages = 20

// stoppedClient is testdata/stopped.c in Go.
func stoppedClient(socket, node, method, what string) error {
	n, err := strconv.Atoi(node)
	m, err2 := strconv.Atoi(method)
	if err = errors.Join(err, err2); err != nil {
		return err
	}
	ctx := context.Background()
	e, err := rdma.Attach(ctx, rdma.Options{
		Socket: socket, Node: device.NodeID(n), Method: pagein.Method(m), Group: fmt.Sprint("go-", os.Getpid()),
	})
	if err != nil {
		return err
	}
	there, err := unix.Mmap(-1, 0, absentPages*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	remote, err := e.ExportVA(rdma.VAOf(there), absentPages*4096)
	if err != nil {
		return err
	}
	here := make([]byte, 4096)
	write := func() (*rdma.Transfer, error) { return e.Write(ctx, rdma.WriteRequest{Src: here, Dst: remote}) }
	read := func() (*rdma.Transfer, error) { return e.Read(ctx, rdma.ReadRequest{Dst: here, Src: remote}) }
	var w, r *rdma.Transfer
	if what == "pending" {
		if err := hang(there); err != nil {
			return err
		}
		if w, err = write(); err != nil {
			return err
		}
		if r, err = read(); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return err
	}
	fmt.Println("waiting")
	switch what {
	case "pending":
		go w.Wait(ctx)
		err = r.Wait(ctx)
	case "word":
		err = e.WaitNotification(ctx, new(uint64), 1)
	case "absent":
		for i := range absentPages {
			w, err := e.Write(ctx, rdma.WriteRequest{Src: here, Dst: remote, Offset: uint64(i) * 4096})
			if err == nil {
				err = w.Wait(ctx)
			}
			if err != nil {
				return err
			}
		}
	case "read":
		if r, err = read(); err == nil {
			err = r.Wait(ctx)
		}
	default: // one more than the doorbell word and the packetizer hold at once
		var all []*rdma.Transfer
		for range device.PktzChannels + 1 {
			if w, err = write(); err != nil {
				return err
			}
			all = append(all, w)
		}
		for _, w := range all {
			err = errors.Join(err, w.Wait(ctx))
		}
	}
	return errors.Join(err, e.Close())
}

// hang registers b with a userfaultfd that nobody serves. The descriptor closes with the process.
func hang(b []byte) error {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		return errno
	}
	const api, register = 0xc018aa3f, 0xc020aa00 // UFFDIO_API, UFFDIO_REGISTER of linux/userfaultfd.h
	a := [3]uint64{0xaa}
	r := [4]uint64{uint64(rdma.VAOf(b)), uint64(len(b)), 1, 0} // UFFDIO_REGISTER_MODE_MISSING
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, api, uintptr(unsafe.Pointer(&a))); errno != 0 {
		return errno
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, register, uintptr(unsafe.Pointer(&r))); errno != 0 {
		return errno
	}
	return nil
}

// processorTime returns the processor time that a process has used (clock_getcpuclockid(3)).
func processorTime(pid int) (time.Duration, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|2), &ts)
	return time.Duration(ts.Nano()), err
}

// idle waits until every process has used less than a hundredth of a processor for a time (a
// twentieth under the race detector). Its error names those that have not.
func idle(pids map[string]int) error {
	const (
		window  = 300 * time.Millisecond
		windows = 10
	)
	part := time.Duration(100)
	if raced {
		part = 20
	}
	used := map[string]time.Duration{}
	for range windows {
		before := map[string]time.Duration{}
		for name, pid := range pids {
			var err error
			if before[name], err = processorTime(pid); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		began := time.Now()
		time.Sleep(window)
		passed := time.Since(began) // more if others have the processor
		for name, was := range before {
			now, err := processorTime(pids[name])
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if used[name] = now - was; used[name] < passed/part {
				delete(pids, name)
				delete(used, name)
			}
		}
		if len(pids) == 0 {
			return nil
		}
	}
	return fmt.Errorf("processor time in %v while pfd does nothing: %v", window, used)
}

// A process that waits for a stopped pfd uses no processor, whatever it waits for, and continues
// when pfd does.
func TestStoppedDaemon(t *testing.T) {
	dir := public(t)
	library(t, dir)
	c := compile(t, dir, filepath.Join("..", "testdata", "stopped"))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket, pfd := startProcess(t, 4, -1)
	type client struct {
		cmd  *exec.Cmd
		in   io.WriteCloser
		out  *bufio.Scanner
		ends bool
	}
	clients, pids := map[string]*client{}, map[string]int{}
	for _, language := range []string{"c", "go"} {
		for method := pagein.GUP; method <= pagein.Populate; method++ {
			for _, what := range []string{"write", "read", "word", "pending"} {
				if what == "pending" && os.Getuid() != 0 {
					t.Log("pending transfers are left out: only root has pages that nobody serves, also for the kernel")
					continue
				}
				name := fmt.Sprintf("%s %v %s", language, method, what)
				args := []string{socket, fmt.Sprint(len(clients) % 4), fmt.Sprint(uint8(method)), what}
				p := &client{cmd: exec.Command(c, args...), ends: what == "write" || what == "read"}
				if language == "go" {
					p.cmd = exec.Command(self, append([]string{stoppedCommand}, args...)...)
				}
				p.cmd.Stderr = t.Output()
				out, err := p.cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				p.out = bufio.NewScanner(out)
				if p.in, err = p.cmd.StdinPipe(); err != nil {
					t.Fatal(err)
				}
				if err := p.cmd.Start(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					_ = p.cmd.Process.Kill() // it may have ended
					_ = p.cmd.Wait()
				})
				clients[name], pids[name] = p, p.cmd.Process.Pid
			}
		}
	}
	says := func(what string) {
		for name, p := range clients {
			if !p.out.Scan() || p.out.Text() != what {
				t.Fatalf("%s says %q, want %q", name, p.out.Text(), what)
			}
		}
	}
	says("ready")
	if err := pfd.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for name, p := range clients {
		if _, err := p.in.Write([]byte("\n")); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	says("waiting")
	if err := idle(pids); err != nil {
		t.Error(err)
	}
	if err := pfd.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for name, p := range clients {
		if !p.ends {
			_ = p.cmd.Process.Kill() // it waits for a page that never arrives
		} else if err := p.cmd.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A real-time client on pfd's own processor leaves it to pfd while it waits, whatever the page-in
// method.
func TestRealTimeClient(t *testing.T) {
	dir := public(t)
	library(t, dir)
	c := compile(t, dir, filepath.Join("..", "testdata", "stopped"))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("chrt", "-f", "50", "true").CombinedOutput(); err != nil {
		t.Skipf("no real-time processes here (root, and a cgroup that has some): %v: %s", err, out)
	}
	socket, _ := startProcess(t, 1, 0)
	for method := pagein.GUP; method <= pagein.Populate; method++ {
		for name, command := range map[string][]string{"c": {c}, "go": {self, stoppedCommand}} {
			t.Run(fmt.Sprint(name, " ", method), func(t *testing.T) {
				args := append([]string{"-f", "50", "taskset", "-c", "0"}, command...)
				cmd := exec.Command("chrt", append(args, socket, "0", fmt.Sprint(uint8(method)), "absent")...)
				cmd.Stdin = strings.NewReader("\n")
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				// A client that spins would have the processor until the kernel throttles it, for
				// a second each time.
				const most = 300 * time.Millisecond
				if used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(); used > most {
					t.Errorf("%d writes into absent memory: %v of processor, want %v at most", absentPages, used, most)
				}
			})
		}
	}
}
