// Package linger creates descriptors that take long to close, as a hostile process may send
// them to pfd. It is for tests.
package linger

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Lasts is how long closing a socket of this package takes, unless its Quiet is closed.
const Lasts = 1000 // seconds

// Quiet is the remote end of lingering sockets. It never reads, so that their data stays
// unsent.
type Quiet struct {
	l     *net.TCPListener
	conns []*net.TCPConn
}

// New creates a Quiet on a port of its own.
func New() (*Quiet, error) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("far end of a lingering socket: %w", err)
	}
	return &Quiet{l: l}, nil
}

// Socket returns a connected socket with unsent data, whose last close waits until the data is
// sent (SO_LINGER, socket(7)). The caller must close it.
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
	f, err := c.File() // f is the last copy, not c
	if err != nil {
		return nil, fmt.Errorf("lingering socket: %w", err)
	}
	if err := unix.SetsockoptLinger(int(f.Fd()), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: Lasts}); err != nil {
		return nil, errors.Join(fmt.Errorf("lingering socket: %w", err), f.Close())
	}
	return f, nil
}

// Close closes the remote end, which ends the lingering of all sockets.
func (q *Quiet) Close() error {
	err := q.l.Close()
	for _, c := range q.conns {
		_ = c.SetLinger(0) // a reset
		err = errors.Join(err, c.Close())
	}
	return err
}
