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

// Bounds of one turn on the owner's goroutine: a client that floods its socket must not starve
// the owner's other work. A request that needs more continues in the next turn. Values below are
// defined by this project.
const (
	turnMessages = 64
	turnAccesses = 128
	turnReply    = 64 << 10
	// The check of checksAnAccess writes of a REGION_WRITE_MULTI takes as long as one access of
	// the device.
	checksAnAccess = 8
	// resetRest is how long a client is not served after it has reset the device. A reset takes
	// the owner a tenth of that time.
	resetRest = 250 * time.Microsecond
)

// conn is the server's side of one connection.
//
// The connection's goroutine receives. It runs requests that concern the device on the owner's
// goroutine (dispatch) and handles all others itself. Before the owner's turn ends it sends the
// replies that the socket accepts without blocking. So the owner never waits for the socket, and
// what the device does after its turn comes after the replies.
//
// A client may hold a lock until its request is answered and need that lock to answer one of our
// messages (QEMU does). So no DMA message is sent while a request is unanswered (turn), and the
// handling of a request never waits for a DMA message.
type conn struct {
	s     *Server
	sock  *socket
	space *space

	dispatchFn func() // c.dispatch, allocated once

	in    *inbox // owned by the connection's goroutine
	yield yield.Yield

	// The current request. Owned by the connection's goroutine, and by the owner's during
	// dispatch.
	m        message
	has      bool // there is a current request
	begun    bool // its handling has begun
	start    int  // where its reply begins in out
	at       int  // how much of it is done: bytes, or writes
	accesses int  // accesses left in this turn
	reset    bool // the device was reset in this turn

	out        []byte // replies
	sent       int    // bytes of out that were sent
	whole      int    // bytes of out that are complete replies
	outFDs     []int  // sent with the last reply in out; owned by the server or the embedding program
	outAt      int    // where that reply begins in out
	outClose   int    // the one of outFDs to close after sending, or -1
	fail       error  // close the connection with this error after sending
	negotiated bool
	peer       limits

	remotes atomic.Bool // a range was mapped without a descriptor

	// turn holds one token: the connection has it while a request is unanswered, and the sender
	// of a DMA message while it sends. It guards sending on sock.
	turn chan struct{}
	mine bool // the connection's goroutine holds turn

	over chan struct{} // closed when receiving has ended
	left chan struct{} // closed when another client may connect

	twin  atomic.Pointer[socket]
	dmaMu sync.Mutex // one DMA message at a time; guards the next fields
	twinI *inbox
	ended bool
	id    uint16

	wait atomic.Pointer[waiter]
}

// waiter is a DMA message that awaits its answer.
type waiter struct {
	id      uint16
	command Command
	addr    uint64
	p       []byte        // to fill, or to send
	err     error         // valid after done
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

// end makes every call that waits on the connection return.
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

// open receives the first message, within the time limit, so that a silent client holds no
// resources for ever. VERSION makes this connection the server's one client.
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

// step handles the current request, or receives.
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
	case err != nil: // there may be a reply to send
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

// take makes the next request the current one, unless there is one. It delivers answers that come
// before it. An error means that the stream cannot be followed.
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

// hold prevents DMA messages until flush.
func (c *conn) hold() {
	if !c.mine {
		c.turn <- struct{}{}
		c.mine = true
	}
}

// answer delivers a reply to its waiter. A reply without a waiter means that the two sides no
// longer agree on the stream.
func (c *conn) answer(m message) error {
	c.sock.shed(m.fds)
	w := c.wait.Load()
	if w == nil || w.id != m.ID || w.command != m.Command || !c.wait.CompareAndSwap(w, nil) {
		return fmt.Errorf("%w: unexpected reply to %v, id %d", ErrMalformed, m.Command, m.ID)
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

// dispatch handles the received requests that concern the device, on the owner's goroutine, and
// sends their replies as far as that does not block. It ends its turn early when there are many
// of either.
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
		// flush meets the same error again.
		n, _ := c.sock.sendNow(c.out[c.sent:c.whole], nil)
		c.sent += n
	}
}

// flush sends the complete replies. It permits DMA messages if no request is unanswered.
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

// finish detaches the client from the device, on the owner's goroutine, and releases the client's
// memory. The connection is not used after it.
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
	c.dmaMu.Lock() // the DMA message in progress has ended
	c.ended = true
	c.dmaMu.Unlock()
	if c.outClose >= 0 {
		closeFDs([]int{c.outClose})
	}
}

// closeTime is how long the next client waits until the last one's descriptors are closed; it is
// defined by this project. It is short in case one of them does not close.
const closeTime = 100 * time.Millisecond

// release closes the remaining resources.
func (c *conn) release() {
	c.sock.shed(c.m.fds)
	c.in.drop(c.sock)
	if t := c.twin.Load(); t != nil {
		c.twinI.drop(t)
		t.closeIn(closeTime)
	}
	c.sock.closeIn(closeTime)
}

// remote accesses memory of the client that has no descriptor, with one message, and returns how
// many bytes it moved.
func (c *conn) remote(addr uint64, p []byte, write bool) (int, error) {
	c.dmaMu.Lock()
	defer c.dmaMu.Unlock()
	if c.ended {
		return 0, ErrGone
	}
	n := min(len(p), int(min(c.peer.transfer, c.s.cfg.MaxTransfer)))
	return n, c.exchange(addr, p[:n], write)
}

// exchange sends one DMA message and waits for its answer, for Timeout in all. The caller holds
// dmaMu.
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
	// A request may have revoked the right to the access since the lookup.
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
	if err != nil { // the stream is lost: a late answer would be mistaken for the next one's
		c.wait.Store(nil)
		c.sock.shutdown()
		return err
	}
	return w.err
}

// byTwin receives the answer on the twin socket, which carries only answers in this direction.
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
	if !c.wait.CompareAndSwap(w, nil) { // the answer is being delivered now
		<-w.done
		return nil
	}
	return err
}
