package user

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/yield"
)

// Bounds of one turn on the owner's goroutine (ours): a client that floods its
// socket shares the owner with everything else that runs there. A request that
// needs more goes on in the next turn.
const (
	turnMessages = 64
	turnAccesses = 128
	turnReply    = 64 << 10
	// checksAnAccess writes of a REGION_WRITE_MULTI are checked in the time that one
	// access of the device takes.
	checksAnAccess = 8
	// resetRest is how long a client that reset the device is not served afterwards: a
	// reset takes the owner a tenth of that (ours).
	resetRest = 250 * time.Microsecond
)

// conn is the server's side of one connection.
//
// Its goroutine receives. What concerns the device it has handled on the owner's
// goroutine (dispatch), everything else it handles itself. The replies go out
// before the owner's turn ends, as far as the socket takes them at once: the owner
// never waits for the socket, and a device that acts after its turn acts after the
// replies.
//
// A client may hold a lock until its request is answered and need that lock to
// answer a message of ours (QEMU does). So no DMA message is sent while a request is
// unanswered (turn), and nothing that handles a request waits for one.
type conn struct {
	s     *Server
	sock  *socket
	space *space

	dispatchFn func() // c.dispatch, made once

	in    *inbox // of the connection's goroutine
	yield yield.Yield

	// The request at hand. Of the connection's goroutine, and of the owner's while
	// that dispatches for it.
	m        message
	has      bool // there is one
	begun    bool // and it was begun
	start    int  // where, in out
	at       int  // how much of it is done: bytes, or writes
	accesses int  // of the turn: how many are left
	reset    bool // of the turn: the device was reset

	out        []byte // replies
	sent       int    // of out
	whole      int    // of out: replies that are complete
	outFDs     []int  // with the last reply in out; the server's or the embedding program's
	outAt      int    // where that reply begins
	outClose   int    // one of outFDs to close after sending, or -1
	fail       error  // close the connection after sending
	negotiated bool
	peer       limits

	remotes atomic.Bool // a mapping without descriptor was there

	// turn is held (it takes one) while a request is unanswered, and by who sends a
	// DMA message. It guards sending on sock.
	turn chan struct{}
	mine bool // the connection's goroutine holds turn

	over chan struct{} // closed when nothing is received any more
	left chan struct{} // closed when the place is free again

	twin  atomic.Pointer[socket]
	dmaMu sync.Mutex // one DMA message at a time; guards what follows
	twinI *inbox
	ended bool
	id    uint16

	wait atomic.Pointer[waiter]
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
	c := &conn{
		s: s, sock: newSocket(fd), space: newSpace(s.cfg.MaxMaps), in: newInbox(limit), outClose: -1,
		turn: make(chan struct{}, 1), over: make(chan struct{}), left: make(chan struct{}),
	}
	c.space.maxKept = mostKept()
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
	defer close(c.over)
	err := c.open()
	for err == nil {
		err = c.step()
	}
	return err
}

// open receives the first message, which must be there in time: a client that says
// nothing must not keep anything for ever. For VERSION it needs the server's one
// place.
func (c *conn) open() error {
	if err := c.sock.timeouts(c.s.cfg.Timeout, c.s.cfg.Timeout); err != nil {
		return err
	}
	by := time.Now().Add(c.s.cfg.Timeout)
	for !c.has {
		if err := c.take(); err != nil {
			return errOr(err, c.flush())
		}
		if c.has {
			break
		}
		if err := c.in.await(c.sock, by, 0); err != nil {
			if errors.Is(err, ErrTimeout) {
				err = fmt.Errorf("%w: no VERSION: %w", ErrMalformed, ErrTimeout)
			}
			return err
		}
	}
	if c.m.Command != CmdVersion || !c.m.isCommand() || c.s.enter(c) {
		return c.sock.timeouts(0, c.s.cfg.Timeout)
	}
	c.s.turned.Add(1)
	c.sock.shed(c.m.fds)
	c.m.fds = nil
	c.hold()
	c.refuse(c.m, unix.EBUSY)
	c.has = false
	return errOr(fmt.Errorf("%w: another client is there: %w", ErrGone, unix.EBUSY), c.flush())
}

// step handles what is at hand, or receives.
func (c *conn) step() error {
	err := c.take()
	if err == nil && !c.has {
		if err = c.flush(); err == nil {
			c.yield.Sleep()
			err = c.in.await(c.sock, time.Time{}, c.s.cfg.Timeout)
		}
		return err
	}
	switch {
	case err != nil: // perhaps with a reply
	case c.m.Command.ofDevice():
		c.hold()
		c.s.run(c.dispatchFn)
		err = c.fail
	default:
		c.hold()
		c.handle()
		err = c.fail
		if err == nil && c.outFDs == nil && len(c.out) < turnReply {
			return nil
		}
	}
	err = errOr(err, c.flush())
	if c.reset && err == nil {
		c.reset = false
		time.Sleep(resetRest)
	}
	return err
}

// take takes the next request unless there is one. Answers on the way to it are
// handed over. An error is a stream that cannot be followed.
func (c *conn) take() error {
	for !c.has {
		m, ok, err := c.in.next()
		switch {
		case err != nil:
			c.hold()
			c.refuse(m, err)
			return err
		case !ok:
			return nil
		case m.isReply():
			if err := c.answer(m); err != nil {
				return err
			}
		default:
			c.m, c.has, c.begun, c.at = m, true, false, 0
		}
	}
	return nil
}

// hold keeps DMA messages back until flush.
func (c *conn) hold() {
	if !c.mine {
		c.turn <- struct{}{}
		c.mine = true
	}
}

// answer hands a reply to who waits for it. A reply that nobody waits for means
// that the two sides do not agree on the stream any more.
func (c *conn) answer(m message) error {
	c.sock.shed(m.fds)
	w := c.wait.Load()
	if w == nil || w.id != m.ID || w.command != m.Command || !c.wait.CompareAndSwap(w, nil) {
		return fmt.Errorf("%w: reply to %v, id %d, which nobody sent", ErrMalformed, m.Command, m.ID)
	}
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

// dispatch handles the requests at hand that concern the device, on the owner's
// goroutine, and sends their replies as far as that needs no waiting. It ends its
// turn early when there is much of either.
func (c *conn) dispatch() {
	c.accesses = turnAccesses
	for range turnMessages {
		c.handle()
		if c.begun || c.fail != nil || c.outFDs != nil || len(c.out) >= turnReply {
			break
		}
		if c.fail = c.take(); !c.has || c.accesses <= 0 || !c.m.Command.ofDevice() {
			break
		}
	}
	if c.outFDs == nil && c.sent < c.whole {
		// An error is met again by flush.
		n, _ := c.sock.sendNow(c.out[c.sent:c.whole], nil)
		c.sent += n
	}
}

// flush sends what replies are complete, and lets DMA messages go out where no
// request was begun and is unanswered.
func (c *conn) flush() error {
	if !c.mine {
		return nil
	}
	var err error
	if c.outFDs == nil {
		err = c.sock.send(c.out[c.sent:c.whole], nil)
	} else if err = c.sock.send(c.out[c.sent:c.outAt], nil); err == nil {
		err = c.sock.send(c.out[c.outAt:c.whole], c.outFDs)
	}
	if c.outClose >= 0 {
		closeFDs([]int{c.outClose})
		c.outClose = -1
	}
	c.outFDs = nil
	if c.sent = c.whole; !c.begun {
		c.out, c.sent, c.whole = c.out[:0], 0, 0
		c.mine = false
		<-c.turn
	}
	return err
}

// finish takes the client away from the device, on the owner's goroutine, and its
// memory from both. Nothing of the connection is used after it.
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
	c.dmaMu.Lock() // a DMA message under way has seen the end
	c.ended = true
	c.dmaMu.Unlock()
	if c.outClose >= 0 {
		closeFDs([]int{c.outClose})
	}
}

// closeTime is how long the next client's turn waits until the last one's descriptors
// are closed (ours): a moment, unless one of them does not close.
const closeTime = 100 * time.Millisecond

// release closes what is left.
func (c *conn) release() {
	c.sock.shed(c.m.fds)
	c.in.drop(c.sock)
	if t := c.twin.Load(); t != nil {
		c.twinI.drop(t)
		t.closeIn(closeTime)
	}
	c.sock.closeIn(closeTime)
}

// remote reaches memory of the client that has no descriptor, with one message, and
// gives how many bytes that moved.
func (c *conn) remote(addr uint64, p []byte, write bool) (int, error) {
	c.dmaMu.Lock()
	defer c.dmaMu.Unlock()
	if c.ended {
		return 0, ErrGone
	}
	n := min(len(p), int(min(c.peer.transfer, c.s.cfg.MaxTransfer)))
	return n, c.exchange(addr, p[:n], write)
}

// exchange sends one DMA message and waits for its answer, for Timeout in all.
// dmaMu is held.
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

	by := time.Now().Add(c.s.cfg.Timeout)
	timer := time.NewTimer(c.s.cfg.Timeout)
	defer timer.Stop()
	select {
	case c.turn <- struct{}{}:
	case <-c.over:
		return ErrGone
	case <-timer.C:
		return fmt.Errorf("%w: a request of the client was not answered meanwhile: a Device must not use DMA while it is called", ErrTimeout)
	}
	// A request may have ended the right to the access since it was looked up.
	err := c.s.dma.allowed()
	if err == nil {
		err = c.space.allows(addr, write)
	}
	if err != nil {
		<-c.turn
		return err
	}
	t := c.twin.Load()
	if t != nil {
		err = t.send(b, nil)
	} else {
		c.wait.Store(w)
		err = c.sock.send(b, nil)
	}
	<-c.turn
	if err == nil && t != nil {
		err = c.byTwin(t, w, by)
	} else if err == nil {
		err = c.byMain(w, timer.C)
	}
	if err != nil { // the stream is lost: a late answer would be taken for the next one's
		c.wait.Store(nil)
		c.sock.shutdown()
		return err
	}
	return w.err
}

// byTwin receives the answer on the twin socket, where nothing but answers comes
// back.
func (c *conn) byTwin(t *socket, w *waiter, by time.Time) error {
	if err := c.twinI.await(t, by, 0); err != nil {
		return fmt.Errorf("answer to %v: %w", w.command, err)
	}
	m, _, err := c.twinI.next()
	if err != nil {
		return err
	}
	t.shed(m.fds)
	if !m.isReply() || m.ID != w.id || m.Command != w.command {
		return fmt.Errorf("%w: %v, id %d, on the twin socket, where the answer to %v was due", ErrMalformed, m.Command, m.ID, w.command)
	}
	w.err = w.take(m)
	return nil
}

// byMain waits until the connection's goroutine has received the answer.
func (c *conn) byMain(w *waiter, late <-chan time.Time) error {
	err := error(nil)
	select {
	case <-w.done:
		return nil
	case <-c.over:
		err = ErrGone
	case <-late:
		err = fmt.Errorf("%w: answer to %v: %w", ErrGone, w.command, ErrTimeout)
	}
	if !c.wait.CompareAndSwap(w, nil) { // it comes this moment
		<-w.done
		return nil
	}
	return err
}
