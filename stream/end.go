package stream

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/exanet/pfd/device"
)

// peer is the process at the other end, as its node names it; the generation is its own word, and
// a wrong one harms only its connections.
type peer struct {
	node       device.NodeID
	iface      uint8
	pdid       device.PDID
	generation device.Generation
}

// remoteEnd is the memory of the other end that this end writes to.
type remoteEnd struct {
	ring  device.VA
	size  uint32
	words device.VA
}

// outside does what an end cannot do by itself. No call waits: post, short, write and credit
// return false if no channel is free.
type outside interface {
	// post sends a message of a connection to the peer.
	post(e *end, m *message) bool
	// short sends span n by a message, which the peer's node may refuse (end.refused).
	short(e *end, n uint64, words []uint64) bool
	// write writes size bytes of the copy, from offset of the stream, into the peer's ring, with
	// completion words in the slot of span n. Without bytes it writes the words alone.
	write(e *end, n, offset uint64, size uint32, first, last uint64) bool
	// landed reports whether the last write of span n has ended, and returns its error.
	landed(e *end, n uint64) (bool, error)
	// credit writes the credit's words to the peer; credited is its landed.
	credit(e *end, first, last uint64) bool
	credited(e *end) (bool, error)
	// slot and credits load words of this end that the peer writes.
	slot(e *end, i int) (first, last uint64)
	credits(e *end) (first, last, beat uint64)
	// abort requests the end of all writes in flight.
	abort(e *end)
}

// end is one end of a connection: a machine without I/O of its own. Its caller gives it the time,
// calls poll after each event and at its deadline, and holds the lock.
type end struct {
	out  outside
	host *host
	id   uint32 // never 0
	mem  any    // the caller's

	peer     peer
	peerID   uint32 // 0 while it dials
	port     uint32 // dialed, or the listener's
	accepted bool
	remote   remoteEnd
	self     remoteEnd
	copy     []byte // of the bytes that are being sent

	s sender
	r receiver

	asked, askDue  int64 // connect or shutdown: the first, the next
	asks, refusals int   // of connect
	closed         bool  // by the program
	err            error // why the connection was reset
	doubtful       bool  // a write failed and may still land
	acked          bool  // the peer has answered the shutdown
	peerShut       bool  // the peer has nothing in flight and writes no more
	lost           bool  // it never said so
	peerDoubtful   bool
	deaf           bool   // a credit has failed
	polled         bool   // since the last visit
	seen           int64  // a sign of life of the peer
	beats          uint64 // the last beat
	vanished       error  // a write failed because the peer has ended
}

// errEnded says that the process of a peer has ended, or admits this one no more.
var errEnded = errors.New("the peer's process has ended")

func (e *end) dialing() bool { return e.peerID == 0 }

// opened takes the peer's memory: from now on bytes may be sent.
func (e *end) opened(now int64, id uint32, r remoteEnd) {
	e.peerID, e.remote, e.seen = id, r, now
	e.s.window, e.s.keeps = uint64(r.size), uint64(len(e.copy))
	e.asked, e.askDue = 0, 0
}

// dial begins to ask.
func (e *end) dial(now int64) {
	e.asked, e.askDue = now, now
	e.poll(now)
}

// asksIn returns how often a message that is not answered is sent in a time. A dial counts what it
// sends, and not the time: while pfd or this process is stopped, its silence says nothing of the peer.
func asksIn(d int64) int { return int(d / askAgain) }

// ask asks the peer for the connection.
func (e *end) ask(now int64) {
	switch {
	case e.err != nil || now < e.askDue:
	case e.asks >= asksIn(askFor):
		e.fail(now, fmt.Errorf("%w: no answer within %d s", syscall.ETIMEDOUT, askFor/1e9))
	case e.out.post(e, &message{op: opConnect, from: e.id, to: e.port, ring: e.self.ring, size: e.self.size, words: e.self.words}):
		e.asks++
		e.askDue = now + askAgain
	default:
		e.askDue = now + busyAgain
	}
}

// askRefused takes the refusal of a connect. A full mailbox is refused, too, so it counts when
// every message is refused for some time.
func (e *end) askRefused(now int64) {
	if e.refusals++; e.dialing() && e.err == nil && e.refusals == e.asks && e.asks > asksIn(refusedFor) {
		e.refused(now, "no process that admits this one has the interface")
	}
}

// refused ends a dial that has reached no other end.
func (e *end) refused(now int64, why string) {
	e.acked, e.peerShut = true, true
	e.fail(now, fmt.Errorf("%w: %s", syscall.ECONNREFUSED, why))
}

// answer accepts the peer's connect, once more if it is repeated.
func (e *end) answer() {
	e.host.answer(e.peer, message{op: opAccept, from: e.id, to: e.peerID, ring: e.self.ring, size: e.self.size, words: e.self.words})
}

// fail resets the connection. Bytes that have arrived can still be read: the peer may have ended
// after its Close.
func (e *end) fail(now int64, err error) {
	if e.err != nil {
		return
	}
	e.err = err
	e.load(now)
	e.s.stopped, e.r.stop = true, true
	e.asked, e.askDue = 0, 0
	e.out.abort(e)
	e.poll(now)
}

// gone ends a connection whose peer has ended.
func (e *end) gone(now int64, err error) {
	e.acked, e.lost, e.deaf = true, true, true
	e.fail(now, err)
}

// poll takes all that has arrived and ended, and does what is due.
func (e *end) poll(now int64) {
	e.polled = true
	if e.dialing() {
		if e.ask(now); e.err == nil {
			return
		}
	} else {
		e.settle(now)
		e.load(now)
		e.s.overdue(now, func(n uint64) { e.write(now, n) })
		e.tell(now)
	}
	e.finish(now)
}

// idle reports whether poll would do nothing: nothing has arrived, is in flight or is due.
func (e *end) idle(now int64) bool {
	if e.dialing() || e.flying() || now >= e.deadline() {
		return false
	}
	first, last, beat := e.out.credits(e)
	return beat == e.beats && decodeCredit(first, last) == e.s.credit && e.r.empty(e.out.slot(e, int(e.r.next%slots)))
}

// settle takes the ends of this end's writes.
func (e *end) settle(now int64) {
	failed := e.s.settle(func(n uint64) (bool, error) { return e.out.landed(e, n) })
	if e.r.flying {
		ended, err := e.out.credited(e)
		if e.r.flying = !ended; err != nil {
			e.deaf = true
			failed = errors.Join(failed, err)
		}
	}
	if failed == nil {
		return
	}
	e.doubtful = true
	if errors.Is(failed, errEnded) {
		e.vanished = failed
	}
	if !e.peerShut { // else it has consumed all that it will
		e.fail(now, fmt.Errorf("%w: %w", syscall.ECONNRESET, failed))
	}
}

// load takes what the peer has written.
func (e *end) load(now int64) {
	first, last, beat := e.out.credits(e)
	if beat != e.beats {
		e.beats, e.seen = beat, now
	}
	if c := decodeCredit(first, last); c != e.s.credit && e.err == nil {
		e.seen = now
		if !e.s.credited(c) {
			e.fail(now, fmt.Errorf("%w: %w", syscall.ECONNRESET, errCredit))
			return
		}
		e.s.settle(func(uint64) (bool, error) { return false, nil })
	}
	for !e.r.stop {
		ok, err := e.r.take(e.out.slot(e, int(e.r.next%slots)))
		if err != nil {
			e.fail(now, fmt.Errorf("%w: %w", syscall.ECONNRESET, err))
			return
		}
		if !ok {
			return
		}
		e.seen = now
	}
}

// send sends n bytes, which are in the copy.
func (e *end) send(now int64, n int) {
	k := e.s.append(now, n, 0)
	if n <= maxShort && k%refreshEvery < refreshEvery-slots {
		m := short{to: e.peerID, number: uint32(k), length: n}
		at := e.s.spans[k%slots].offset % uint64(len(e.copy))
		copy(m.data[:n], e.copy[at:])
		var words [device.PktzMaxWords]uint64
		if e.out.short(e, k, m.encode(&words)) {
			e.s.wait(k, now+askAgain)
			return
		}
	}
	e.write(now, k)
}

// shortRefused writes a span into its slot whose message was refused.
func (e *end) shortRefused(now int64, n uint64) {
	if n-e.s.oldest < e.s.next-e.s.oldest && n >= e.s.credit.spans && e.s.spans[n%slots].due != never {
		e.s.wait(n, now)
		e.poll(now)
	}
}

// write writes span n into its slot.
func (e *end) write(now int64, n uint64) {
	p := &e.s.spans[n%slots]
	first, last := slot{offset: p.offset, length: p.length, number: uint32(n + 1), flags: p.flags}.encode()
	if p.flying = e.out.write(e, n, p.offset, p.length, first, last); p.flying {
		p.due = never
	} else {
		e.s.wait(n, now+busyAgain)
	}
}

// endOfStream sends the last span.
func (e *end) endOfStream(now int64) {
	if !e.s.fin && !e.s.stopped && !e.dialing() {
		e.s.fin = true
		e.write(now, e.s.append(now, 0, spanFIN))
	}
}

// consume frees n bytes that were read.
func (e *end) consume(now int64, n int) {
	e.r.consume(n)
	e.tell(now)
}

// tell writes a credit if one is due.
func (e *end) tell(now int64) {
	if e.silent() {
		e.r.due = never
	} else if c, due := e.r.creditDue(now); due {
		e.writeCredit(now, c)
	}
}

// silent reports whether this end writes nothing to its peer any more, or not yet. After its shutdown
// the peer may use its memory for another connection.
func (e *end) silent() bool { return e.dialing() || e.peerShut || e.deaf || e.asked != 0 }

// writeCredit writes a credit.
func (e *end) writeCredit(now int64, c credit) {
	first, last := c.encode()
	if e.r.flying = e.out.credit(e, first, last); e.r.flying {
		e.r.told, e.r.due = c, never
	} else {
		e.r.due = now + busyAgain
	}
}

// beat writes the last credit again: the peer sees that this process runs, and a failure tells that
// the peer has ended. It reports whether the write has begun.
func (e *end) beat(now int64) bool {
	if e.r.flying || e.silent() {
		return false
	}
	e.writeCredit(now, credit{bytes: e.r.read, spans: e.r.done, reset: e.r.stop})
	return e.r.flying
}

// close ends the connection for the program: bytes that were sent are delivered, and nothing more is taken.
func (e *end) close(now int64) {
	e.closed = true
	if e.dialing() {
		e.fail(now, errAbandoned)
		return
	}
	e.endOfStream(now)
	e.s.hurry(now)
	e.r.stop = true
	e.poll(now)
}

var errAbandoned = errors.New("the program gave the connection up")

// finish asks the peer to end the connection when nothing of this end is in flight.
func (e *end) finish(now int64) {
	if e.acked {
		e.lost = e.lost || !e.peerShut && now-e.asked >= askFor
		return
	}
	if !e.closed && e.err == nil && !e.peerShut || e.flying() {
		return
	}
	if e.err == nil && !e.peerShut && !e.s.finished() || !e.r.told.reset && !e.peerShut && !e.deaf && !e.dialing() {
		return
	}
	if e.asked == 0 {
		e.asked = now
	}
	switch {
	case now-e.asked >= askFor:
		e.acked, e.lost = true, true
	case now < e.askDue:
	case e.out.post(e, e.shutdown(0)):
		e.askDue = now + askAgain
	default:
		e.askDue = now + busyAgain
	}
}

func (e *end) shutdown(flags uint8) *message {
	if e.err != nil {
		flags |= flagReset
	}
	if e.doubtful {
		flags |= flagDoubtful
	}
	return &message{op: opShutdown, from: e.id, to: e.peerID, flags: flags}
}

// peerShutdown takes the peer's shutdown, or its answer to this end's.
func (e *end) peerShutdown(now int64, flags uint8) {
	if flags&flagAnswer != 0 {
		if e.asked != 0 { // else nothing was asked
			e.acked = true
		}
		if flags&flagUnknown != 0 && !e.peerShut {
			e.peerShut = true
			e.peerDoubtful = !e.dialing()
		}
		e.poll(now)
		return
	}
	if !e.dialing() && e.err == nil {
		e.load(now)
	}
	known := e.peerShut
	e.peerShut = true
	e.peerDoubtful = e.peerDoubtful || flags&flagDoubtful != 0
	e.s.stopped = true
	if flags&flagReset != 0 && !known || e.dialing() {
		e.fail(now, fmt.Errorf("%w: its end was reset", syscall.ECONNRESET))
	}
	e.host.answer(e.peer, *e.shutdown(flagAnswer))
	e.poll(now)
}

// flying reports whether a write of this end is in flight.
func (e *end) flying() bool { return e.r.flying || e.s.flying() }

// over reports whether the end can be forgotten: nothing of either side is in flight.
func (e *end) over() bool {
	return e.closed && e.acked && (e.peerShut || e.lost) && !e.flying()
}

// retired reports whether a late write may still arrive in the memory of an end that both sides have finished.
func (e *end) retired() bool { return e.lost || e.peerDoubtful }

// flushed reports whether all that was sent is in the peer's memory, or never will be.
func (e *end) flushed() bool { return e.s.stopped || e.s.fin && e.s.due == never && !e.s.flying() }

// deadline returns when poll has to be called, if nothing happens before.
func (e *end) deadline() int64 {
	d := min(e.s.due, e.r.due)
	switch {
	case e.dialing() && e.err == nil, e.asked != 0 && !e.acked && !e.flying():
		d = min(d, e.askDue)
	case e.acked && !e.peerShut && !e.lost:
		d = min(d, e.asked+askFor)
	}
	return d
}

// localPort and remotePort are the ports of the two ends' addresses: the listener's, and the id of
// the end that has dialed.
func (e *end) localPort() uint32 {
	if e.accepted {
		return e.port
	}
	return e.id
}

func (e *end) remotePort() uint32 {
	if e.accepted {
		return e.peerID
	}
	return e.port
}
