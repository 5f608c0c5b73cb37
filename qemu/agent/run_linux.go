package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Errors of the host's side.
var (
	// ErrBusy reports that all sessions of a guest are in use.
	ErrBusy = errors.New("all sessions of the guest are in use")
	// ErrGone reports that the guest or its agent has ended.
	ErrGone = errors.New("the guest no longer answers")
	// ErrStart reports that the command could not be started.
	ErrStart = errors.New("the guest could not start the command")
)

// Socket returns the path of a guest's port below the guest's directory.
func Socket(dir string, port int) string {
	return filepath.Join(dir, "port"+strconv.Itoa(port)+".sock")
}

// Command is a command for a guest.
type Command struct {
	Exec
	Stdin          io.Reader // nil: no input
	Stdout, Stderr io.Writer
	Resize         <-chan Size // of the terminal; may be nil
}

// Run runs a command in the guest whose sockets are in dir, and returns its exit code. It kills
// the command when ctx ends.
func Run(ctx context.Context, dir string, c Command) (int, error) {
	conn, unlock, err := open(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer unlock()
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // the guest then kills the command
	defer stop()
	code, err := converse(newStream(conn), c)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return code, err
}

// open takes a free port: it locks the port and connects to its socket. QEMU accepts one client
// at a time.
func open(ctx context.Context, dir string) (net.Conn, func(), error) {
	for port := range Ports {
		path := Socket(dir, port)
		lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, nil, fmt.Errorf("session of a guest: %w", err)
		}
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			_ = lock.Close()
			continue
		}
		if err != nil {
			_ = lock.Close()
			return nil, nil, fmt.Errorf("session of a guest: %w", os.NewSyscallError("flock", err))
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err != nil {
			_ = lock.Close()
			return nil, nil, fmt.Errorf("%w: %w", ErrGone, err)
		}
		return conn, func() { _ = lock.Close() }, nil
	}
	return nil, nil, fmt.Errorf("%w: the limit is %d", ErrBusy, Ports)
}

// converse performs one session.
func converse(s *stream, c Command) (int, error) {
	id := rand.Text()
	c.Time = time.Now().UnixNano()
	err := s.begin()
	if err == nil {
		err = s.send(Message{Session: id, Exec: &c.Exec})
	}
	if errors.Is(err, ErrMessage) {
		return 0, err
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrGone, err)
	}
	over := make(chan struct{})
	defer close(over)
	room := make(chan struct{}, window)
	go func() {
		// receive returns the same error of the stream.
		if c.Stdin != nil {
			_ = s.copyOut(c.Stdin, func(b []byte) Message {
				select {
				case room <- struct{}{}:
				case <-over:
				}
				return Message{Session: id, Stdin: b}
			})
		}
		_ = s.send(Message{Session: id, EOF: true})
	}()
	go func() {
		for {
			select {
			case size := <-c.Resize:
				_ = s.send(Message{Session: id, Resize: &size})
			case <-over:
				return
			}
		}
	}()
	for {
		m, err := s.receive()
		switch {
		case err != nil:
			return 0, fmt.Errorf("%w: %w", ErrGone, err)
		case m.Session != id:
			continue // of an earlier session
		case m.Ack:
			select {
			case <-room:
			default: // the guest acknowledged too much
			}
		case m.Exit != nil && m.Exit.Error != "":
			return m.Exit.Code, fmt.Errorf("%w %q: %s", ErrStart, c.Args[0], m.Exit.Error)
		case m.Exit != nil:
			return m.Exit.Code, nil
		}
		if err := put(c.Stdout, m.Stdout); err != nil {
			return 0, fmt.Errorf("standard output: %w", err)
		}
		if err := put(c.Stderr, m.Stderr); err != nil {
			return 0, fmt.Errorf("standard error: %w", err)
		}
	}
}

func put(w io.Writer, b []byte) error {
	if w == nil || len(b) == 0 {
		return nil
	}
	_, err := w.Write(b)
	return err
}
