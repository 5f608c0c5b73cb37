// Package linger makes what a hostile process sends to pfd: a descriptor that
// takes long to close. It is for tests.
package linger

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Lasts is how long a socket of this package takes to close, until its Quiet.
const Lasts = 1000 // seconds

// Quiet is the far end of lingering sockets. It reads nothing, so that what they
// have sent is never taken.
type Quiet struct {
	l     *net.TCPListener
	conns []*net.TCPConn
}

// New makes a Quiet on a port of its own.
func New() (*Quiet, error) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("far end of a lingering socket: %w", err)
	}
	return &Quiet{l: l}, nil
}

// Socket gives a connected socket with data that is not taken, whose last close
// waits for that (SO_LINGER, socket(7)). It is the caller's.
func (q *Quiet) Socket() (*os.File, error) {
	c, err := net.DialTCP("tcp4", nil, q.l.Addr().(*net.TCPAddr))
	if err != nil {
		return nil, fmt.Errorf("lingering socket: %w", err)
	}
	defer c.Close()
	far, err := q.l.AcceptTCP()
	if err != nil {
		return nil, fmt.Errorf("lingering socket: %w", err)
	}
	q.conns = append(q.conns, far)
	if err := far.SetReadBuffer(1 << 12); err != nil {
		return nil, fmt.Errorf("lingering socket: %w", err)
	}
	if err := c.SetWriteBuffer(1 << 12); err != nil {
		return nil, fmt.Errorf("lingering socket: %w", err)
	}
	b := make([]byte, 1<<16)
	for err == nil {
		if err = c.SetWriteDeadline(time.Now().Add(5 * time.Millisecond)); err == nil {
			_, err = c.Write(b)
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("lingering socket: %w", err)
	}
	f, err := c.File() // c's own close is not the last one
	if err != nil {
		return nil, fmt.Errorf("lingering socket: %w", err)
	}
	if err := unix.SetsockoptLinger(int(f.Fd()), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: Lasts}); err != nil {
		return nil, errors.Join(fmt.Errorf("lingering socket: %w", err), f.Close())
	}
	return f, nil
}

// Close ends the far end, and so the lingering of all sockets.
func (q *Quiet) Close() error {
	err := q.l.Close()
	for _, c := range q.conns {
		_ = c.SetLinger(0) // a reset
		err = errors.Join(err, c.Close())
	}
	return err
}
