package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/vfio/user"
	"github.com/exanet/pfd/workload"
)

// Numbers of the device's suite: register reads follow one another so often, beside
// messages of so many bytes.
const (
	registerRound = 500
	pingSize      = 64
)

// EchoCommand is the command of Lab.Program that runs Echo.
const EchoCommand = "test-echo"

// Echo sends back what comes on descriptor 3, until its other end has gone.
func Echo() {
	var b [pingSize]byte
	for exchange(3, unix.Read, b[:]) == nil && exchange(3, unix.Write, b[:]) == nil {
	}
}

// device is writes of 4 KiB by a pfd whose nodes are in another process, by queues in
// memory and by registers, beside one with the nodes inside.
func (r *run) device() (err error) {
	dir, err := os.MkdirTemp("", "exanet-")
	if err != nil {
		return fmt.Errorf("directory for sockets: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	serveCtx, stop := context.WithCancel(r.ctx)
	server, err := helper(serveCtx, r.Program, nil, "emu", "serve", "--nodes", "2", "--socket-dir", dir)
	if err != nil {
		stop()
		return err
	}
	defer func() {
		stop()
		_ = server.Wait() // it was told to end
	}()
	t := r.table("register", "A register read over vfio-user", "us", "", "64 bytes there and back between two processes")
	if err := r.register(serve.SocketPath(dir, 0), t); err != nil {
		return err
	}
	device := fmt.Sprintf("vfio-user:%s,%s", serve.SocketPath(dir, 0), serve.SocketPath(dir, 1))
	w := r.table("device", "Writes of 4 KiB with the device in a process of its own (gup, p1)", "us", "device", "present")
	m := r.table("messages", "What a fault over vfio-user takes", "", "", "")
	for _, k := range []struct {
		row  string
		args []string
	}{{"vfio-user", []string{"--device", device}}, {"vfio-user, by registers alone", []string{"--device", device, "--registers"}}, {"in pfd", nil}} {
		// One after the other: a device has one driver.
		if err := r.with(2, func(d *pfd) error {
			p, err := r.open(d, 0, 1, "gup", "p1")
			if err != nil {
				return err
			}
			if err := r.takeTurns(r.transfers(p, workload.PerfRun{Size: smallSize}, w.cell(k.row, "present"), nil),
				r.transfers(p, workload.PerfRun{Size: smallSize, Dst: 1}, w.cell(k.row, "absent"), nil)); err != nil {
				return err
			}
			if k.row == "vfio-user" {
				return r.messages(d, m)
			}
			return nil
		}, k.args...); err != nil {
			return err
		}
	}
	return nil
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

// helper starts a process that ends with this one.
func helper(ctx context.Context, program string, files []*os.File, args ...string) (*exec.Cmd, error) {
	c := exec.CommandContext(ctx, program, args...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	c.ExtraFiles, c.Stderr = files, os.Stderr
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", args[0], err)
	}
	return c, nil
}

// register measures reads of ID and exchanges of the same kind in turns, so that
// what disturbs the machine disturbs both.
func (r *run) register(path string, t *Table) (err error) {
	ctx := r.ctx
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
	echo, err := helper(echoCtx, r.Program, []*os.File{theirs}, EchoCommand)
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
	round := func(row string, f func() error) *turn {
		return &turn{count: registerRound * max(r.Count/50, 1), do: func(add func(*Cell, ...float64)) error {
			took := make([]float64, registerRound)
			for i := range took {
				start := time.Now()
				if err := f(); err != nil {
					return err
				}
				took[i] = float64(time.Since(start).Nanoseconds()) / 1e3
			}
			add(t.cell(row, "time"), took...)
			return nil
		}}
	}
	return r.takeTurns(
		round("64 bytes there and back between two processes", func() error {
			return errors.Join(exchange(fds[0], unix.Write, buf[:]), exchange(fds[0], unix.Read, buf[:]))
		}),
		round("register read over the socket", func() error {
			_, err := client.Read(0, 0, 4)
			return err
		}))
}
