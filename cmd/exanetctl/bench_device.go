package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/vfio/user"
	"github.com/exanet/pfd/workload/bench"
)

// deviceBench is what bench-device shows.
type deviceBench struct {
	Version int `json:"version"`
	// A register read over the vfio-user socket, and 64 bytes there and back
	// between two processes on a socket of the same kind, in turns.
	Register struct {
		Rounds int     `json:"rounds"`
		Read   float64 `json:"read_us"`
		Ping   float64 `json:"ping_us"`
		Ratio  float64 `json:"read_by_ping"`
	} `json:"register_read"`
	// Writes of 4 KiB by pfd over the socket, and by pfd with the nodes inside.
	Socket bench.Small `json:"vfio_user"`
	Inside bench.Small `json:"emu"`
}

// Numbers of bench-device.
const (
	registerRounds = 40
	registerRound  = 500
	pingSize       = 64
)

func (a *app) deviceBenchCommand() *cobra.Command {
	var pfd string
	var small int
	var file string
	c := &cobra.Command{
		Use:    "bench-device",
		Short:  "Measure the device behind a socket: a register read, and writes into absent memory",
		Hidden: true,
		Args:   maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if small < 1 {
				return usagef("--small: want 1 transfer or more")
			}
			return a.benchDevice(cmd.Context(), pfd, file, small)
		},
	}
	f := c.Flags()
	f.StringVar(&pfd, "pfd", "bin/pfd", "the pfd to start")
	f.IntVar(&small, "small", 300, "transfers of 4 KiB of each kind")
	f.StringVar(&file, "write", "", "document whose section this replaces")
	return c
}

// echoCommand is the other end of the ping-pong: descriptor 3.
func (a *app) echoCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "test-echo",
		Short:  "Send back what comes on descriptor 3",
		Hidden: true,
		Args:   maxArgs(0),
		RunE: func(*cobra.Command, []string) error {
			var b [pingSize]byte
			for {
				if err := exchange(3, unix.Read, b[:]); err != nil {
					return nil // the other end has gone
				}
				if err := exchange(3, unix.Write, b[:]); err != nil {
					return nil
				}
			}
		},
	}
}

// exchange reads or writes all of b.
func exchange(fd int, call func(int, []byte) (int, error), b []byte) error {
	for len(b) > 0 {
		n, err := call(fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return unix.EPIPE
		default:
			b = b[n:]
		}
	}
	return nil
}

// helper starts this program once more; it ends with this one.
func helper(ctx context.Context, files []*os.File, args ...string) (*exec.Cmd, error) {
	c := exec.CommandContext(ctx, "/proc/self/exe", args...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	c.ExtraFiles, c.Stderr = files, os.Stderr
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", args[0], err)
	}
	return c, nil
}

func (a *app) benchDevice(ctx context.Context, pfd, file string, small int) (err error) {
	// What is started here ends with the thread that started it.
	runtime.LockOSThread()
	dir, err := os.MkdirTemp("", "exanet-")
	if err != nil {
		return fmt.Errorf("directory for sockets: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	serveCtx, stop := context.WithCancel(ctx)
	server, err := helper(serveCtx, nil, "emu", "serve", "--nodes", "2", "--socket-dir", dir)
	if err != nil {
		stop()
		return err
	}
	defer func() {
		stop()
		_ = server.Wait() // it was told to end
	}()
	b := deviceBench{Version: 1}
	if err := b.register(ctx, serve.SocketPath(dir, 0)); err != nil {
		return err
	}
	device := fmt.Sprintf("vfio-user:%s,%s", serve.SocketPath(dir, 0), serve.SocketPath(dir, 1))
	l := bench.Lab{PFD: pfd, Command: testProcess(), Small: small}
	if b.Socket, err = l.Write4KiB(ctx, "--device", device); err != nil {
		return err
	}
	if b.Inside, err = l.Write4KiB(ctx); err != nil {
		return err
	}
	if file != "" {
		if err := bench.Replace(file, "bench-device", b.markdown()); err != nil {
			return err
		}
	}
	if a.wantJSON() {
		return a.printJSON(b)
	}
	t := a.table("register", fmt.Sprintf("read %.1f us", b.Register.Read), fmt.Sprintf("64 bytes there and back %.1f us", b.Register.Ping), fmt.Sprintf("%.2fx that", b.Register.Ratio))
	for _, r := range []struct {
		name string
		f    *bench.Small
	}{{"4 KiB, vfio-user", &b.Socket}, {"4 KiB, emu", &b.Inside}} {
		t.add(r.name, fmt.Sprintf("present %.1f us", r.f.Present), fmt.Sprintf("absent (gup, p1) %.1f us", r.f.Absent), fmt.Sprintf("%.2fx present", r.f.Ratio))
	}
	return t.flush()
}

// markdown gives the tables for docs/benchmarks.md.
func (b *deviceBench) markdown() string {
	return fmt.Sprintf(`| | |
| --- | --- |
| register read over the socket, p50 | %.1f us |
| 64 bytes there and back between two processes | %.1f us (%.2f) |
| 4 KiB present, over vfio-user | %.1f us |
| 4 KiB absent, over vfio-user | %.0f us |
| 4 KiB present and absent, in process | %.1f and %.1f us |
`, b.Register.Read, b.Register.Ping, b.Register.Ratio, b.Socket.Present, b.Socket.Absent, b.Inside.Present, b.Inside.Absent)
}

// register measures reads of ID and exchanges of the same kind in turns, so that
// what disturbs the machine disturbs both.
func (b *deviceBench) register(ctx context.Context, path string) (err error) {
	client, err := user.Redial(ctx, path, user.Options{}, func(c *user.Client) error { return c.SetCommand(user.CommandMemory) })
	if err != nil {
		return fmt.Errorf("the device: %w", err)
	}
	defer client.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), filepath.Base(path))
	echoCtx, stop := context.WithCancel(ctx)
	echo, err := helper(echoCtx, []*os.File{theirs}, "test-echo")
	_ = theirs.Close() // the helper has it
	defer func() {
		err = errors.Join(err, unix.Close(fds[0]))
		stop()
		if echo != nil {
			_ = echo.Wait() // its end of the socket is closed, or it was told to end
		}
	}()
	if err != nil {
		return err
	}
	var buf [pingSize]byte
	var reads, pings []time.Duration
	for range registerRounds {
		for range registerRound {
			start := time.Now()
			if _, err := client.Read(0, 0, 4); err != nil {
				return err
			}
			reads = append(reads, time.Since(start))
		}
		for range registerRound {
			start := time.Now()
			if err := errors.Join(exchange(fds[0], unix.Write, buf[:]), exchange(fds[0], unix.Read, buf[:])); err != nil {
				return fmt.Errorf("ping: %w", err)
			}
			pings = append(pings, time.Since(start))
		}
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[(len(d)-1)/2].Nanoseconds()) / 1e3
	}
	b.Register.Rounds = len(reads)
	b.Register.Read, b.Register.Ping = median(reads), median(pings)
	b.Register.Ratio = b.Register.Read / b.Register.Ping
	return nil
}
