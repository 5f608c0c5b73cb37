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

// DaemonProcess is a private pfd, with its sockets in a temporary directory.
type DaemonProcess struct {
	dir    string
	cmd    *exec.Cmd
	ended  chan struct{} // closed when the process has ended
	err    error         // the result of Wait; valid when ended is closed
	stderr *tail
}

const (
	readyPatience = 30 * time.Second
	stopPatience  = 15 * time.Second
)

// StartDaemon starts program (a pfd) with a number of nodes and waits until it
// is ready (sd_notify(3)). The caller must call Stop. The kernel ends the daemon if the
// calling thread ends first: a caller that locks its goroutine to its thread leaves no
// process behind even if it is killed.
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
		_ = l.SetReadDeadline(time.Now()) // fails only if StartDaemon has closed it
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
			return errors.New("pfd ended before it was ready") // Stop adds pfd's messages
		default:
			return fmt.Errorf("notification socket: %w", err)
		}
	}
}

// Socket returns the path of the control socket.
func (d *DaemonProcess) Socket() string { return filepath.Join(d.dir, "pfd.sock") }

// Command returns the command line that started the daemon.
func (d *DaemonProcess) Command() []string { return d.cmd.Args }

// Stop sends the daemon SIGTERM and waits for it, at most stopPatience. It returns an error
// with the daemon's messages if the daemon did not end with exit code 0.
func (d *DaemonProcess) Stop() error {
	var errs []error
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		errs = append(errs, fmt.Errorf("stop pfd: %w", err))
	}
	kill := time.AfterFunc(stopPatience, func() {
		_ = d.cmd.Process.Kill() // fails only if it has ended
	})
	<-d.ended
	kill.Stop()
	if d.err != nil {
		errs = append(errs, fmt.Errorf("pfd: %w: %s", d.err, strings.TrimSpace(d.stderr.String())))
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}
