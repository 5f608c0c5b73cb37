package stream

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// closeTime bounds how long Close waits until all bytes are in the peer's memory. Defined by this
// project.
const closeTime = 2 * time.Second

// Conn is a connection, a net.Conn. It is safe for concurrent use.
type Conn struct {
	s    *stack
	e    *end
	area area

	reading, writing  sync.Mutex // one Read, one Write at a time
	readEnd, writeEnd deadline
	reader, writer    waiter
	opener            waiter // Dial, Close

	// The stack's lock guards the fields below.
	writes  [slots]flight
	credit  flight
	busy    int  // goroutines that copy bytes
	over    bool // the end is: nothing more can arrive
	retired bool
}

func (c *Conn) init() {
	c.readEnd, c.writeEnd = newDeadline(), newDeadline()
	c.reader, c.writer, c.opener = newWaiter(), newWaiter(), newWaiter()
}

// signal wakes the goroutines whose events have come.
func (c *Conn) signal() {
	if c.readable() {
		c.reader.signal(c.s)
	}
	if c.writable() {
		c.writer.signal(c.s)
	}
	if c.e.err != nil || !c.e.dialing() && !c.e.closed || c.e.closed && c.e.flushed() {
		c.opener.signal(c.s)
	}
}

func (c *Conn) readable() bool {
	e := c.e
	return e.closed || e.err != nil || len(e.r.available()) > 0 || e.r.fin || e.peerShut
}

func (c *Conn) writable() bool {
	e := c.e
	return e.closed || e.err != nil || e.s.stopped || e.s.fin || e.s.room(1<<30) > 0
}

// advance takes what has arrived for the connection.
func (c *Conn) advance() {
	c.s.mail()
	if !c.over {
		c.s.h.poll(c.s.now(), c.e)
	}
}

// leave records that n copies of bytes to or from the memory have ended. It frees the memory once the
// end is finished and no copy is under way.
func (c *Conn) leave(n int) {
	if c.busy -= n; c.over && c.busy == 0 && c.area.words != nil {
		c.s.memory.put(c.area, c.retired)
		c.area.words = nil
		c.s.release()
	}
}

// Read reads what has arrived, up to len(b) bytes; without anything it waits. After the last byte
// of a peer that has closed the connection it returns io.EOF. Bytes that arrived before a reset are
// returned before its error.
func (c *Conn) Read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	n, err := c.read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = c.opError("read", err)
	}
	return n, err
}

func (c *Conn) read(b []byte) (int, error) {
	over := c.readEnd.channel()
	if passed(over) {
		return 0, os.ErrDeadlineExceeded
	}
	s, e := c.s, c.e
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(b) == 0 && !e.closed {
		return 0, nil
	}
	if !s.until(&c.reader, over, c.advance, c.readable) {
		return 0, os.ErrDeadlineExceeded
	}
	if e.closed {
		return 0, net.ErrClosed
	}
	n := 0
	for p := e.r.available(); len(p) > 0 && n < len(b) && !e.closed; p = e.r.available() {
		c.busy++
		s.mu.Unlock()
		k := copy(b[n:], p)
		s.mu.Lock()
		e.consume(s.now(), k)
		s.plan(e)
		c.leave(1)
		n += k
	}
	switch {
	case n > 0:
		return n, nil
	case e.r.fin:
		return 0, io.EOF
	case e.err != nil:
		return 0, e.err
	}
	return 0, io.EOF // the peer has shut down
}

// Write sends b. It returns when all bytes are copied, into memory from which they are sent. It
// waits while that memory or the peer's ring, 1 MiB and 2 MiB, has no room.
func (c *Conn) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	n, err := c.write(b)
	if err != nil {
		err = c.opError("write", err)
	}
	return n, err
}

func (c *Conn) write(b []byte) (n int, err error) {
	s, e := c.s, c.e
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		over := c.writeEnd.channel()
		if passed(over) {
			return n, os.ErrDeadlineExceeded
		}
		switch {
		case e.closed:
			return n, net.ErrClosed
		case e.err != nil:
			return n, e.err
		case e.s.fin:
			return n, fmt.Errorf("%w: CloseWrite was called", syscall.EPIPE)
		case e.s.stopped:
			return n, fmt.Errorf("%w: the peer has closed the connection", syscall.EPIPE)
		case n == len(b):
			return n, nil
		}
		k := e.s.room(len(b) - n)
		if k == 0 {
			if !s.until(&c.writer, over, c.advance, c.writable) {
				return n, os.ErrDeadlineExceeded
			}
			continue
		}
		to := e.copy[e.s.sent%uint64(len(e.copy)):][:k]
		c.busy++
		s.mu.Unlock()
		copy(to, b[n:])
		s.mu.Lock()
		if !e.closed && e.err == nil && !e.s.fin && !e.s.stopped {
			e.send(s.now(), k)
			s.plan(e)
			n += k
		}
		c.leave(1)
	}
}

// CloseWrite ends the sending direction: the peer reads io.EOF after the last byte.
func (c *Conn) CloseWrite() error {
	s, e := c.s, c.e
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case e.closed:
		return c.opError("close", net.ErrClosed)
	case e.err != nil:
		return c.opError("close", e.err)
	}
	e.endOfStream(s.now())
	c.signal()
	s.plan(e)
	return nil
}

// Close closes the connection. Blocked calls return. Bytes that were written are still
// delivered: they are in the peer's memory when Close returns, unless that takes more than 2
// seconds. The peer's next write fails. A second Close returns net.ErrClosed.
func (c *Conn) Close() error {
	s, e := c.s, c.e
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.closed {
		return c.opError("close", net.ErrClosed)
	}
	e.close(s.now())
	c.signal()
	over := make(chan struct{})
	t := time.AfterFunc(closeTime, func() { close(over) })
	defer t.Stop()
	s.until(&c.opener, over, c.advance, e.flushed)
	c.advance()
	s.plan(e)
	return nil
}

// LocalAddr returns the address of this end.
func (c *Conn) LocalAddr() net.Addr {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.local()
}

func (c *Conn) local() Addr { return Addr{c.s.h.node, c.s.h.iface, c.e.localPort()} }

// RemoteAddr returns the address of the other end.
func (c *Conn) RemoteAddr() net.Addr {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.remote()
}

func (c *Conn) remote() Addr { return Addr{c.e.peer.node, c.e.peer.iface, c.e.remotePort()} }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline sets the time after which Read returns an error that matches
// os.ErrDeadlineExceeded; zero: never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(&c.readEnd, t) }

// SetWriteDeadline sets the time after which Write returns an error that matches
// os.ErrDeadlineExceeded; zero: never.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.writeEnd, t) }

func (c *Conn) setDeadline(d *deadline, t time.Time) error {
	c.s.mu.Lock()
	closed := c.e.closed
	c.s.mu.Unlock()
	if closed {
		return c.opError("set", net.ErrClosed)
	}
	d.set(t)
	return nil
}

func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: network, Source: c.local(), Addr: c.remote(), Err: err}
}
