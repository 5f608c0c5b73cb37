package user

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// serve answers a request of the server: DMA_READ and DMA_WRITE of memory that the client has
// mapped. It refuses all others.
func (c *Client) serve(s *socket, m message) error {
	s.shed(m.fds)
	b := append(make([]byte, HeaderSize, HeaderSize+dmaAccessSize), m.body[:min(len(m.body), dmaAccessSize)]...)
	h := Header{ID: m.ID, Command: m.Command, Flags: flagReply}
	c.served.Load()
	b, err := c.dma(m, b)
	c.served.Add(1)
	if err != nil {
		b = b[:HeaderSize]
		h.Flags |= flagError
		h.Error = uint32(dmaErrno(err))
	}
	if m.noReply() {
		return nil
	}
	h.Size = uint32(len(b))
	h.Append(b[:0])
	if s == c.sock {
		c.out.Lock()
		defer c.out.Unlock()
	}
	return s.send(b, nil)
}

func dmaErrno(err error) unix.Errno {
	switch {
	case errors.Is(err, ErrUnmapped):
		return unix.EFAULT
	case errors.Is(err, ErrDenied):
		return unix.EPERM
	case errors.Is(err, ErrLost):
		return unix.EIO
	}
	return errnoOf(err)
}

// dma performs an access and appends the data of a read to the answer.
func (c *Client) dma(m message, b []byte) ([]byte, error) {
	a, data, err := DecodeDMAAccess(m.body)
	if err != nil {
		return b, err
	}
	if a.Count > uint64(c.opts.MaxTransfer) {
		return b, refuse(unix.EINVAL, "%d bytes, at most %d", a.Count, c.opts.MaxTransfer)
	}
	switch m.Command {
	case CmdDMARead:
		if len(data) != 0 {
			return b, refuse(unix.EINVAL, "DMA_READ with data")
		}
		at := len(b)
		b = append(b, make([]byte, a.Count)...)
		return b, c.space.access(a.Address, b[at:], false, nil, nil)
	case CmdDMAWrite:
		if uint64(len(data)) != a.Count {
			return b, refuse(unix.EINVAL, "DMA_WRITE of %d bytes with %d", a.Count, len(data))
		}
		return b, c.space.access(a.Address, data, true, nil, nil)
	}
	return b, refuse(unix.EINVAL, "%v from a server", m.Command)
}

// serveTwin answers requests on the twin socket until the socket ends, which ends the client.
func (c *Client) serveTwin() {
	in := newInbox(HeaderSize + dmaAccessSize + int(c.opts.MaxTransfer))
	defer in.drop(c.twin)
	for {
		m, ok, err := in.next()
		switch {
		case err == nil && !ok:
			err = in.await(c.twin, time.Time{}, c.patience())
		case err == nil && !m.isCommand():
			c.sock.shed(m.fds)
			err = fmt.Errorf("%w: answer to %v on the twin socket", ErrMalformed, m.Command)
		case err == nil:
			err = c.serve(c.twin, m)
		}
		if err != nil {
			_ = c.fail(err)
			return
		}
	}
}

// serveIdle answers the server's requests while no request of ours is in progress.
func (c *Client) serveIdle() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		m, ok, err := c.in.next()
		switch {
		case err == nil && !ok:
			if err = c.in.receive(c.sock, unix.MSG_DONTWAIT); errors.Is(err, errWouldBlock) {
				return nil
			}
		case err == nil && c.settled(m):
		case err == nil && !m.isCommand():
			c.sock.shed(m.fds)
			err = fmt.Errorf("%w: unexpected answer to %v", ErrMalformed, m.Command)
		case err == nil:
			err = c.serve(c.sock, m)
		}
		if err != nil {
			return err
		}
	}
}

// monitor detects the server's end while no request is in progress. If the server may send
// requests over the main socket it detects those too. It polls for no other event, so that an
// answer wakes only the goroutine that waits for it.
type monitor struct {
	wake  int // eventfd: check told, or end
	told  atomic.Bool
	ready bool
}

func (w *monitor) open() error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	w.wake, w.ready = fd, true
	return nil
}

// listen makes the monitor watch the main socket for requests from now on.
func (w *monitor) listen() {
	if !w.told.Swap(true) {
		w.stir()
	}
}

func (w *monitor) stir() {
	if w.ready {
		_, _ = unix.Write(w.wake, eventfdOne) // EAGAIN: the counter is full, so the eventfd is readable
	}
}

func (w *monitor) close() {
	if w.ready {
		w.ready = false
		closeFDs([]int{w.wake})
	}
}

func (w *monitor) watch(c *Client) {
	for {
		events := int16(unix.POLLRDHUP)
		if w.told.Load() && c.twin == nil {
			events |= unix.POLLIN
		}
		p := []unix.PollFd{{Fd: int32(c.sock.fd), Events: events}, {Fd: int32(w.wake), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err != nil && err != unix.EINTR {
			_ = c.fail(fmt.Errorf("poll: %w", err))
			return
		}
		select {
		case <-c.done:
			return
		default:
		}
		if p[1].Revents != 0 {
			drain(w.wake)
		}
		if p[0].Revents&unix.POLLIN != 0 || p[1].Revents != 0 && c.twin == nil {
			if err := c.serveIdle(); err != nil {
				_ = c.fail(err)
				return
			}
		}
		if p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0 {
			_ = c.fail(fmt.Errorf("%w: server closed the connection", ErrGone))
			return
		}
	}
}
