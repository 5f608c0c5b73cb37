package user

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of one turn on the owner's goroutine (ours): a client that floods its
// socket shares the owner with everything else that runs there.
const (
	turnMessages = 64
	turnReply    = 64 << 10
)

// Bounds of what a client may send while it owes the answer to a DMA message
// (ours).
const (
	queueMessages = 4096
	queueBytes    = 16 << 20
)

// conn is the server's side of one connection.
//
// Its goroutine receives, has the requests handled on the owner's goroutine
// (dispatch), and sends the replies: the owner never waits for the socket. A
// device that needs an answer to a DMA message waits for it wherever it runs:
// either it receives itself, or the connection's goroutine, which is receiving,
// hands it over. Requests that arrive meanwhile are queued.
type conn struct {
	s     *Server
	sock  *socket
	space *space

	dispatchFn func() // c.dispatch, made once

	// rd is held by whoever receives. It guards in, queue and dead.
	rd     sync.Mutex
	in     *inbox
	queue  []message // requests that came while an answer was awaited
	queued int       // their bytes
	dead   error     // why nothing can be received any more

	// Of dispatch; the connection's goroutine reads them between two turns.
	out        []byte // replies to send
	outFDs     []int  // with the last reply in out; the server's or the embedding program's
	outAt      int    // where that reply begins
	outClose   int    // one of outFDs to close after sending, or -1
	fail       error  // close the connection after sending
	negotiated bool
	peer       limits
	messages   atomic.Bool // mappings without descriptor exist: answer one by one

	wr sync.Mutex // of sending on sock

	twin  atomic.Pointer[socket]
	dmaMu sync.Mutex // one DMA message at a time; guards what follows
	twinI *inbox
	ended bool
	id    uint16

	wait atomic.Pointer[waiter]
	wake chan struct{} // 1; rd was released while there is a waiter
}

// waiter is a DMA message whose answer is awaited.
type waiter struct {
	id      uint16
	command Command
	addr    uint64
	p       []byte        // to fill, or that was sent
	err     error         // good after done
	done    chan struct{} // closed with the answer
}

func newConn(s *Server, fd int) *conn {
	limit := HeaderSize + dmaAccessSize + max(int(s.cfg.MaxTransfer), maxVersionData)
	c := &conn{s: s, sock: newSocket(fd), space: newSpace(s.cfg.MaxMaps), in: newInbox(limit), outClose: -1, wake: make(chan struct{}, 1)}
	c.dispatchFn = c.dispatch
	return c
}

// end makes everything that waits on the connection return.
func (c *conn) end() {
	c.sock.shutdown()
	if t := c.twin.Load(); t != nil {
		t.shutdown()
	}
}

// loop serves the connection until it ends.
func (c *conn) loop() error {
	// Only the first message has a time limit: a client that says nothing must
	// not keep the place for ever.
	if err := c.sock.timeouts(c.s.cfg.Timeout, c.s.cfg.Timeout); err != nil {
		return err
	}
	for {
		c.rd.Lock()
		err := c.fill()
		c.release()
		if err != nil {
			return err
		}
		agreed := c.negotiated
		c.s.run(c.dispatchFn)
		if err := c.flush(); err != nil {
			return err
		}
		if c.fail != nil {
			return c.fail
		}
		if !agreed && c.negotiated {
			if err := c.sock.timeouts(0, c.s.cfg.Timeout); err != nil {
				return err
			}
		}
	}
}

// release gives rd back and tells a waiter that it may take it.
func (c *conn) release() {
	c.rd.Unlock()
	if c.wait.Load() != nil {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// fill receives until a request is at hand. rd is held.
func (c *conn) fill() error {
	for {
		if c.dead != nil {
			return c.dead
		}
		if len(c.queue) > 0 || c.in.pending() {
			return nil
		}
		if err := c.in.receive(c.sock, c.s.cfg.Spin, 0); err != nil {
			if errors.Is(err, errWouldBlock) {
				err = fmt.Errorf("%w: no VERSION: %w", ErrMalformed, ErrTimeout)
			}
			c.dead = err
			return err
		}
	}
}

// next takes the next request. Answers on the way to it are handed over. rd is
// held. An error is a stream that cannot be followed; the message then holds
// the header, to answer.
func (c *conn) next() (message, bool, error) {
	if len(c.queue) > 0 {
		m := c.queue[0]
		c.queue[0] = message{}
		c.queue = c.queue[1:]
		c.queued -= len(m.body)
		return m, true, nil
	}
	for {
		m, ok, err := c.in.next()
		if err != nil || !ok {
			return m, false, err
		}
		if m.isReply() {
			if err := c.answer(m); err != nil {
				c.dead = err
				return message{}, false, nil
			}
			continue
		}
		return m, true, nil
	}
}

// answer hands a reply to who waits for it. A reply that nobody waits for means
// that the two sides do not agree on the stream any more. rd is held.
func (c *conn) answer(m message) error {
	closeFDs(m.fds)
	w := c.wait.Load()
	if w == nil || w.id != m.ID || w.command != m.Command {
		return fmt.Errorf("%w: reply to %v, id %d, which nobody sent", ErrMalformed, m.Command, m.ID)
	}
	c.wait.Store(nil)
	w.err = w.take(m)
	close(w.done)
	return nil
}

// take checks an answer and copies its data.
func (w *waiter) take(m message) error {
	if m.isError() {
		return &Error{m.Command, unix.Errno(m.Error)}
	}
	if w.command == CmdDMAWrite {
		a, err := decodeDMAWriteReply(m.body)
		if err == nil && (a.Address != w.addr || a.Count != uint64(len(w.p))) {
			err = fmt.Errorf("reply to DMA_WRITE for %#x+%#x: %w", a.Address, a.Count, ErrMalformed)
		}
		return err
	}
	a, data, err := DecodeDMAAccess(m.body)
	if err == nil && (a.Address != w.addr || a.Count != uint64(len(w.p)) || len(data) != len(w.p)) {
		err = fmt.Errorf("reply to DMA_READ for %#x+%#x with %d bytes: %w", a.Address, a.Count, len(data), ErrMalformed)
	}
	if err == nil {
		copy(w.p, data)
	}
	return err
}

// dispatch handles the requests at hand, on the owner's goroutine. It ends its
// turn early when the replies should go out first.
func (c *conn) dispatch() {
	for range turnMessages {
		c.rd.Lock()
		m, ok, err := c.next()
		c.in.inUse = ok
		c.release()
		if err != nil {
			c.refuse(m, err)
			c.fail = err
			return
		}
		if !ok {
			return
		}
		c.handle(m)
		c.rd.Lock()
		c.in.inUse = false
		c.release()
		if c.fail != nil || c.outFDs != nil || len(c.out) >= turnReply || c.messages.Load() {
			return
		}
	}
}

// flush sends the replies of a turn.
func (c *conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	c.wr.Lock()
	var err error
	if c.outFDs == nil {
		err = c.sock.send(c.out, nil)
	} else if err = c.sock.send(c.out[:c.outAt], nil); err == nil {
		err = c.sock.send(c.out[c.outAt:], c.outFDs)
	}
	c.wr.Unlock()
	if c.outClose >= 0 {
		closeFDs([]int{c.outClose})
		c.outClose = -1
	}
	c.out, c.outFDs = c.out[:0], nil
	return err
}

// finish takes the client away from the device, on the owner's goroutine, and
// releases everything of the connection.
func (c *conn) finish() {
	c.end()
	c.s.run(func() {
		if c.s.dma.conn.CompareAndSwap(c, nil) {
			for _, index := range []uint32{IRQMSIX, IRQErr, IRQReq} {
				c.s.irq.disable(index)
			}
			if w, ok := c.s.dev.(Watcher); ok {
				w.Disconnected()
			}
		}
	})
	c.space.clear()
	c.dmaMu.Lock() // a DMA message under way has seen the end of the socket
	c.ended = true
	if t := c.twin.Load(); t != nil {
		t.close()
		c.twinI.drop()
	}
	c.dmaMu.Unlock()
	c.rd.Lock()
	for _, m := range c.queue {
		closeFDs(m.fds)
	}
	c.queue = nil
	c.in.drop()
	c.rd.Unlock()
	if c.outClose >= 0 {
		closeFDs([]int{c.outClose})
	}
	c.sock.close()
}

// remote reaches memory of the client that has no descriptor, in pieces that
// both sides take.
func (c *conn) remote(addr uint64, p []byte, write bool) error {
	c.dmaMu.Lock()
	defer c.dmaMu.Unlock()
	most := int(min(c.peer.transfer, c.s.cfg.MaxTransfer))
	for len(p) > 0 {
		if c.ended {
			return ErrGone
		}
		n := min(len(p), most)
		if err := c.exchange(addr, p[:n], write); err != nil {
			return err
		}
		addr += uint64(n)
		p = p[n:]
	}
	return nil
}

// exchange sends one DMA message and waits for its answer. dmaMu is held.
func (c *conn) exchange(addr uint64, p []byte, write bool) error {
	c.id++
	w := &waiter{id: c.id, command: CmdDMARead, addr: addr, p: p, done: make(chan struct{})}
	data := []byte(nil)
	if write {
		w.command, data = CmdDMAWrite, p
	}
	size := HeaderSize + dmaAccessSize + len(data)
	b := make([]byte, 0, size)
	b = Header{ID: w.id, Command: w.command, Size: uint32(size)}.Append(b)
	b = DMAAccess{addr, uint64(len(p))}.Append(b)
	b = append(b, data...)
	var err error
	if t := c.twin.Load(); t != nil {
		err = c.byTwin(t, w, b)
	} else {
		err = c.byMain(w, b)
	}
	if err != nil { // the stream is lost: a late answer would be taken for the next one's
		c.sock.shutdown()
		return err
	}
	return w.err
}

// byTwin sends on the twin socket, where nothing but answers comes back.
func (c *conn) byTwin(t *socket, w *waiter, b []byte) error {
	if err := t.send(b, nil); err != nil {
		return err
	}
	for {
		m, ok, err := c.twinI.next()
		if err != nil {
			return err
		}
		if ok {
			closeFDs(m.fds)
			if !m.isReply() || m.ID != w.id || m.Command != w.command {
				return fmt.Errorf("%w: %v, id %d, on the twin socket, where the answer to %v was due", ErrMalformed, m.Command, m.ID, w.command)
			}
			w.err = w.take(m)
			return nil
		}
		if err := c.twinI.receive(t, c.s.cfg.Spin, 0); err != nil {
			if errors.Is(err, errWouldBlock) {
				err = fmt.Errorf("%w: answer to %v: %w", ErrGone, w.command, ErrTimeout)
			}
			return err
		}
	}
}

// byMain sends on the connection itself and waits, receiving where nobody else
// does.
func (c *conn) byMain(w *waiter, b []byte) error {
	c.wait.Store(w)
	defer c.wait.Store(nil)
	c.wr.Lock()
	err := c.sock.send(b, nil)
	c.wr.Unlock()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(c.s.cfg.Timeout)
	timer := time.NewTimer(c.s.cfg.Timeout)
	defer timer.Stop()
	for {
		if c.rd.TryLock() {
			err := c.receiveFor(w, deadline)
			c.rd.Unlock()
			if err != nil {
				return err
			}
		} else {
			select {
			case <-c.wake: // the connection's goroutine stopped receiving
			case <-w.done:
			case <-timer.C:
				return fmt.Errorf("%w: answer to %v: %w", ErrGone, w.command, ErrTimeout)
			}
		}
		select {
		case <-w.done:
			return nil
		default:
		}
	}
}

// receiveFor receives once for a waiter: requests are queued. rd is held.
func (c *conn) receiveFor(w *waiter, deadline time.Time) error {
	if err := c.enqueue(); err != nil {
		return err
	}
	select {
	case <-w.done:
		return nil
	default:
	}
	err := c.sock.poll(deadline)
	if err == nil {
		err = c.in.receive(c.sock, 0, unix.MSG_DONTWAIT)
	}
	if errors.Is(err, errWouldBlock) {
		return nil
	}
	if err == nil {
		err = c.enqueue()
	}
	if err != nil && c.dead == nil {
		c.dead = err
	}
	return err
}

// enqueue moves every whole message out of the inbox: answers to who waits,
// requests to the queue. rd is held.
func (c *conn) enqueue() error {
	for c.dead == nil {
		m, ok, err := c.in.next()
		if err != nil {
			c.dead = err
			return err
		}
		if !ok {
			return nil
		}
		if m.isReply() {
			if err := c.answer(m); err != nil {
				c.dead = err
			}
			continue
		}
		m.body = append([]byte(nil), m.body...)
		c.queue = append(c.queue, m)
		c.queued += len(m.body)
		if len(c.queue) > queueMessages || c.queued > queueBytes {
			c.dead = fmt.Errorf("%w: %d requests while an answer was due", ErrMalformed, len(c.queue))
		}
	}
	return c.dead
}
