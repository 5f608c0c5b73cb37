package workload

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// DaemonProcess is a pfd of one's own, with sockets in a directory that goes
// with it.
type DaemonProcess struct {
	dir    string
	cmd    *exec.Cmd
	ended  chan struct{} // closed when it has ended
	err    error         // what Wait gave, then
	stderr *tail
}

// Times of a daemon's life.
const (
	readyPatience = 30 * time.Second
	stopPatience  = 15 * time.Second
)

// StartDaemon starts program (a pfd) with so many nodes and waits until it
// says that it is ready (sd_notify(3)). The caller calls Stop. The kernel ends
// the daemon where the calling thread ends first: a caller that locks its
// goroutine to its thread leaves nothing behind even if it is killed.
func StartDaemon(ctx context.Context, program string, nodes int, args ...string) (d *DaemonProcess, err error) {
	dir, err := os.MkdirTemp("", "exanet-")
	if err != nil {
		return nil, fmt.Errorf("directory for sockets: %w", err)
	}
	d = &DaemonProcess{dir: dir, ended: make(chan struct{}), stderr: &tail{}}
	started := false
	defer func() {
		if err != nil && !started {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	notify := filepath.Join(dir, "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("notification socket: %w", err)
	}
	defer l.Close()
	d.cmd = exec.Command(program, append([]string{"--nodes", strconv.Itoa(nodes), "--socket", d.Socket()}, args...)...)
	d.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+notify)
	d.cmd.Stderr = d.stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start pfd: %w", err)
	}
	started = true
	go func() {
		defer close(d.ended)
		d.err = d.cmd.Wait()
	}()
	if err := d.waitReady(ctx, l); err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	return d, nil
}

func (d *DaemonProcess) waitReady(ctx context.Context, l *net.UnixConn) error {
	ctx, cancel := context.WithTimeout(ctx, readyPatience)
	defer cancel()
	go func() {
		select {
		case <-d.ended:
		case <-ctx.Done():
		}
		_ = l.SetReadDeadline(time.Now()) // it is closed where pfd was ready
	}()
	for b := make([]byte, 4096); ; {
		n, err := l.Read(b)
		switch {
		case err == nil && slices.Contains(strings.Fields(string(b[:n])), "READY=1"):
			return nil
		case err == nil:
		case ctx.Err() != nil:
			return fmt.Errorf("pfd is not ready: %w: %s", ctx.Err(), strings.TrimSpace(d.stderr.String()))
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errors.New("pfd ended before it was ready") // Stop tells what it said
		default:
			return fmt.Errorf("notification socket: %w", err)
		}
	}
}

// Socket gives the control socket.
func (d *DaemonProcess) Socket() string { return filepath.Join(d.dir, "pfd.sock") }

// Command gives the command line that started the daemon.
func (d *DaemonProcess) Command() []string { return d.cmd.Args }

// Stop ends the daemon in good order and waits for it. Its error tells how
// the daemon ended if not well.
func (d *DaemonProcess) Stop() error {
	var errs []error
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		errs = append(errs, fmt.Errorf("stop pfd: %w", err))
	}
	kill := time.AfterFunc(stopPatience, func() {
		// Too late is no error: it has ended.
		_ = d.cmd.Process.Kill()
	})
	<-d.ended
	kill.Stop()
	if d.err != nil {
		errs = append(errs, fmt.Errorf("pfd: %w: %s", d.err, strings.TrimSpace(d.stderr.String())))
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}
