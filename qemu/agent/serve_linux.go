package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// portPause is the time between two searches for the ports; defined by this project.
const portPause = 10 * time.Millisecond

// Serve serves the ports of this guest until ctx ends.
func Serve(ctx context.Context) error {
	var names []string
	// If the IOMMU's driver is a module, the ports' device appears after it is loaded.
	for ; len(names) < Ports; time.Sleep(portPause) {
		var err error
		if names, err = filepath.Glob("/sys/class/virtio-ports/*/name"); err != nil {
			return fmt.Errorf("ports of the guest: %w", err)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	// The driver of the ports sends SIGIO when the host connects and disconnects
	// (drivers/char/virtio_console.c, send_sigio_to_port).
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, syscall.SIGIO)
	defer signal.Stop(sig)
	var came event
	var wg sync.WaitGroup
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil || !strings.HasPrefix(string(text), PortName) {
			continue
		}
		path := filepath.Join("/dev", filepath.Base(filepath.Dir(name)))
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("port of the guest: %w", err)
		}
		if err := signalled(f); err != nil {
			return err
		}
		wg.Go(func() { servePort(ctx, f, &came) })
		context.AfterFunc(ctx, func() { _ = f.Close() })
	}
	for ctx.Err() == nil {
		select {
		case <-sig:
			came.raise()
		case <-ctx.Done():
		}
	}
	wg.Wait()
	return nil
}

// signalled makes the port's driver send SIGIO to this process.
func signalled(f *os.File) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = c.Control(func(fd uintptr) {
		var flags int
		if _, serr = unix.FcntlInt(fd, unix.F_SETOWN, os.Getpid()); serr != nil {
			return
		}
		if flags, serr = unix.FcntlInt(fd, unix.F_GETFL, 0); serr == nil {
			_, serr = unix.FcntlInt(fd, unix.F_SETFL, flags|unix.O_ASYNC)
		}
	})
	if err = errors.Join(err, serr); err != nil {
		return fmt.Errorf("signals of port %s: %w", f.Name(), err)
	}
	return nil
}

// event wakes all its waiters.
type event struct {
	mu sync.Mutex
	c  chan struct{}
}

func (e *event) wait() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c == nil {
		e.c = make(chan struct{})
	}
	return e.c
}

func (e *event) raise() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c != nil {
		close(e.c)
		e.c = nil
	}
}

// lost limits the wait for a host whose signal was missed; defined by this project.
const lost = time.Second

func servePort(ctx context.Context, f *os.File, came *event) {
	for ctx.Err() == nil {
		wait := came.wait() // before the check
		serve(newStream(port{f}), setClock)
		select {
		case <-wait:
		case <-time.After(lost):
		case <-ctx.Done():
		}
	}
}

// port is a port that reports only an end that lasts. The driver receives connects and
// disconnects of hosts on another queue than the data. So data of the next host may arrive
// before the driver knows of the disconnect, and reads return an end in between
// (drivers/char/virtio_console.c, handle_control_message).
type port struct{ io.ReadWriter }

// How long an end must last, and the time between two checks. Values below are defined by this
// project.
const (
	settle     = 500 * time.Millisecond
	settleStep = 20 * time.Millisecond
)

func (p port) Read(b []byte) (int, error) {
	for left := settle; ; left -= settleStep {
		n, err := p.ReadWriter.Read(b)
		if n > 0 || !errors.Is(err, io.EOF) || left <= 0 {
			return n, err
		}
		time.Sleep(settleStep)
	}
}

// setClock sets the guest's clock to the host's time, ns since 1970, if they differ by a
// second. It ignores errors.
func setClock(now int64) {
	if d := time.Since(time.Unix(0, now)); d.Abs() > time.Second {
		tv := unix.NsecToTimeval(now)
		_ = unix.Settimeofday(&tv)
	}
}

// serve performs sessions until the host disconnects. Each passes the host's time to clock.
func serve(s *stream, clock func(now int64)) {
	var now *session
	for {
		m, err := s.receive()
		if err != nil || m.Exec != nil {
			if now != nil {
				now.kill()
				now = nil
			}
		}
		switch {
		case err != nil:
			return
		case m.Exec != nil:
			if m.Exec.Time != 0 {
				clock(m.Exec.Time)
			}
			now = start(s, m)
		case now != nil && m.Session == now.id:
			now.take(m)
		}
	}
}

// session is a running command.
type session struct {
	id    string
	cmd   *exec.Cmd
	stdin chan []byte // nil: end of input
	tty   *os.File
	done  chan struct{}
}

// Exit codes of a shell (POSIX, 2.8.2): not found or not startable, and the offset of signal
// numbers.
const (
	codeNotStarted = 127
	codeSignal     = 128
)

// start starts a session. It returns nil if the command could not be started.
func start(s *stream, m Message) *session {
	c := exec.Command(m.Exec.Args[0], m.Exec.Args[1:]...)
	c.Env = append(os.Environ(), m.Exec.Env...)
	n := &session{id: m.Session, cmd: c, stdin: make(chan []byte, window+1), done: make(chan struct{})}
	ends, in, err := n.begin(m.Exec.TTY)
	if err != nil {
		_ = s.send(Message{Session: m.Session, Exit: &Exit{Code: codeNotStarted, Error: err.Error()}})
		return nil
	}
	go n.feed(s, in)
	go n.finish(s, ends)
	return n
}

// output is a source of a command's output, and the message that carries it.
type output struct {
	r       io.Reader
	message func([]byte) Message
}

// begin starts the command on a terminal or on pipes.
func (n *session) begin(size *Size) ([]output, io.WriteCloser, error) {
	stdout := func(b []byte) Message { return Message{Session: n.id, Stdout: b} }
	stderr := func(b []byte) Message { return Message{Session: n.id, Stderr: b} }
	if size != nil {
		tty, err := pty.StartWithSize(n.cmd, &pty.Winsize{Rows: size.Rows, Cols: size.Columns})
		if err != nil {
			return nil, nil, err
		}
		n.tty = tty
		return []output{{tty, stdout}}, tty, nil
	}
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := n.cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	errs, err := n.cmd.StderrPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := n.cmd.Start(); err != nil {
		return nil, nil, err
	}
	return []output{{out, stdout}, {errs, stderr}}, in, nil
}

// drain is how long to wait for more output after the command has ended: its background
// processes may keep the output open. Defined by this project.
const drain = 200 * time.Millisecond

// finish sends the rest of the output, and then the exit.
func (n *session) finish(s *stream, ends []output) {
	var wg sync.WaitGroup
	for _, o := range ends {
		wg.Go(func() { _ = s.copyOut(o.r, o.message) }) // if the host is gone, serve notices
	}
	outputs := make(chan struct{})
	go func() { wg.Wait(); close(outputs) }()
	state, err := n.cmd.Process.Wait()
	select {
	case <-outputs:
	case <-time.After(drain):
	}
	close(n.done)
	exit := Exit{}
	if err != nil {
		exit = Exit{Code: codeNotStarted, Error: err.Error()}
	} else if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		exit.Code = codeSignal + int(w.Signal())
	} else {
		exit.Code = state.ExitCode()
	}
	_ = s.send(Message{Session: n.id, Exit: &exit})
	for _, o := range ends {
		if c, ok := o.r.(io.Closer); ok {
			_ = c.Close()
		}
	}
}

// feed writes the standard input. It drops input that the command does not read.
func (n *session) feed(s *stream, in io.WriteCloser) {
	for {
		select {
		case b := <-n.stdin:
			if b == nil {
				if n.tty == nil {
					_ = in.Close()
				}
				return
			}
			_, _ = in.Write(b)
			_ = s.send(Message{Session: n.id, Ack: true}) // if the host is gone, serve notices
		case <-n.done:
			_ = in.Close()
			return
		}
	}
}

// take processes a message of the session.
func (n *session) take(m Message) {
	put := func(b []byte) {
		select {
		case n.stdin <- b:
		default: // exceeds the window
		}
	}
	switch {
	case m.EOF:
		put(nil)
	case len(m.Stdin) > 0:
		put(m.Stdin)
	case m.Resize != nil && n.tty != nil:
		_ = pty.Setsize(n.tty, &pty.Winsize{Rows: m.Resize.Rows, Cols: m.Resize.Columns})
	}
}

// kill kills the session's processes.
func (n *session) kill() {
	select {
	case <-n.done:
		return // the pid may have been reused
	default:
	}
	_ = unix.Kill(-n.cmd.Process.Pid, unix.SIGKILL) // fails if the process has ended already
}
