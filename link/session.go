package link

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/exanet/pfd/soc/wire"
)

// The classes of connections (spec/hosts.md 1).
const (
	classHigh = 0
	classBulk = 1
	classes   = 2
	// classKnock is that of a connection that only asks the other side to dial.
	classKnock = 2
	places     = 3
)

// Sizes of batches (defined by this project). A connection whose sink keeps all its batches is not
// read.
const (
	maxBatches  = 4
	batchFirst  = 1 << 10 // of an idle connection; each batch that is full makes the next ones larger
	batchGrowth = 16
	batchSize   = 128 << 10
	batchFrames = 512
	spareSize   = 64 << 10 // for blocks of which packets are missing
)

// conn is a connection whose HELLO was accepted.
type conn struct {
	raw    net.Conn
	framed *framed  // nil without TLS
	stream net.Conn // what records are read from and written to
	peer   *peer
	class  int
	number uint64              // of the link
	chain  []*x509.Certificate // the peer's, nil without TLS

	octets  atomic.Uint64 // received
	idle    atomic.Bool   // the reader is to free memory
	reading atomic.Bool   // the reader waits for bytes, and not for its sink
	silent  int           // looks in which TCP had nothing but waited for an acknowledgement
}

// close closes the connection without waiting for the peer.
func (c *conn) close() { hangUp(c.raw) }

// finish closes a connection of which both sides have sent all, without taking back what is on its way.
func (c *conn) finish() {
	if t, ok := c.raw.(*net.TCPConn); ok {
		_ = t.SetLinger(-1)
	}
	_ = c.raw.Close()
}

// hangUp closes a socket. Another process may have the same socket, and may have made it blocking:
// Close would then wait for a reader that is in the kernel, or for the peer. Shutdown ends the reader,
// and without lingering Close does not wait. It must not be called with a lock.
func hangUp(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
		}
	}
	_ = c.Close()
}

// worn reports whether a connection has carried so much that it needs new keys: crypto/tls does not
// change them by itself (RFC 8446 5.5).
func (s *session) worn() bool {
	for class, c := range s.conns {
		if c.framed != nil && max(c.octets.Load(), s.p.queues[class].total()-s.before[class]) > maxOctets {
			return true
		}
	}
	return false
}

// maxOctets is the most that a TLS connection carries (defined by this project): 2^24.5 records of 16
// KiB, the limit of AES-GCM, are half as much again.
const maxOctets = 1 << 38

// stuck is called at each look and reports whether TCP has waited in vain for twice the time that it should,
// by default for 0.3 to 0.45 s. It sends again after ever longer times: a new link is up sooner when the network
// answers.
func (c *conn) stuck(look time.Duration) bool {
	silent, trip := silence(c.raw)
	if silent < look {
		c.silent = 0
		return false
	}
	c.silent++
	return time.Duration(c.silent-1)*look >= 2*trip
}

// more reports whether a read returns bytes at once.
func (c *conn) more() bool { return c.framed != nil && c.framed.more() }

// read reads into b.
func (c *conn) read(b []byte) (int, error) {
	c.reading.Store(true)
	n, err := c.stream.Read(b)
	c.reading.Store(false)
	c.octets.Add(uint64(n))
	if n > 0 && c.class == classHigh && c.peer.ready.silent.Swap(false) {
		c.peer.report()
	}
	return n, err
}

// write writes b.
func (c *conn) write(b []byte) error {
	if _, err := c.stream.Write(b); err != nil {
		return err
	}
	return c.flush()
}

// flush writes what try has left.
func (c *conn) flush() error {
	if c.framed != nil {
		return c.framed.flush()
	}
	return nil
}

// try writes b without waiting. It returns false if some of it waits for flush.
func (c *conn) try(b []byte) (all bool, err error) {
	if _, err := c.stream.Write(b); err != nil { // to framed, which keeps it
		return false, err
	}
	return c.framed.try(), nil
}

// exporter returns the TLS state that keys can be exported from, nil without TLS.
func (c *conn) exporter() *tls.ConnectionState {
	t, ok := c.stream.(*tls.Conn)
	if !ok {
		return nil
	}
	state := t.ConnectionState()
	return &state
}

// session is a link while it is up.
type session struct {
	p     *peer
	sink  Sink
	conns [classes]*conn
	ended chan error    // the first one ends the session
	done  chan struct{} // closed when it ends
	wg    sync.WaitGroup

	pinged     atomic.Uint64 // content of the last heartbeat of class high
	asked      atomic.Uint64 // content of the peer's last one
	answering  atomic.Bool   // the sink is to answer it
	unanswered atomic.Bool
	started    time.Time
	spare      bool            // this side can do without the link; watch's
	agreed     atomic.Bool     // the peer can
	sealed     atomic.Bool     // the link is being closed: the queues keep what is added
	finished   atomic.Int32    // readers and writers that have seen the last record
	before     [classes]uint64 // bytes that the queues had carried
}

func (s *session) fail(err error) {
	select {
	case s.ended <- err:
	default:
	}
}

// seal begins to close a link that nothing uses: each side sends all that its queues have, and then that
// it is idle. When both have, the session ends and nothing is lost.
func (s *session) seal() {
	if !s.sealed.Swap(true) {
		for _, q := range s.p.queues {
			q.seal()
		}
	}
}

// finish counts a reader or writer that has seen the last record.
func (s *session) finish() {
	if s.finished.Add(1) == 2*classes {
		s.fail(errIdle)
	}
}

// spawn starts f, whose error ends the session.
func (s *session) spawn(f func() error) {
	s.wg.Add(1)
	go s.do(f)
}

// do runs f. If it returns errLeft, another goroutine does f in its place.
func (s *session) do(f func() error) {
	err := f()
	if errors.Is(err, errLeft) {
		return
	}
	if err != nil {
		s.fail(err)
	}
	s.wg.Done()
}

// errLeft means that a reader goes on on another goroutine.
var errLeft = errors.New("left behind")

// send writes what a queue has until the queue ends.
func (s *session) send(q *queue, write func([]byte) error, flush func() error) error {
	var list [][]byte
	for {
		var open bool
		if list, open = q.take(list); !open {
			s.finish()
			return nil
		}
		if err := flush(); err != nil {
			return fmt.Errorf("writing: %w", err)
		}
		for i, chunk := range list {
			list[i] = nil
			err := write(chunk)
			if q.written(chunk) {
				s.p.report()
			}
			if err != nil {
				return fmt.Errorf("writing: %w", err)
			}
		}
	}
}

// beat sends a heartbeat on a connection.
func (s *session) beat(class int) {
	content := uint64(0)
	switch {
	case class == classHigh:
		content = uint64(time.Since(s.started))
		s.pinged.Store(content)
		s.unanswered.Store(true)
	case s.spare:
		content = beatSpare
	}
	s.p.control(class, recordBeat, binary.LittleEndian.AppendUint64(nil, content))
}

// batch is a buffer with the frames whose payloads lie in it.
type batch struct {
	buf    []byte
	end    int
	frames []*wire.Frame
	n      int
	spare  []byte
	used   int // of spare
	done   func()
}

// next returns the frame to decode into.
func (b *batch) next() *wire.Frame {
	if b.n == len(b.frames) {
		b.frames = append(b.frames, new(wire.Frame))
	}
	return b.frames[b.n]
}

// reader reads one connection.
type reader struct {
	s    *session
	c    *conn
	free chan *batch
	made int
	size int    // of batches
	rest []byte // at the end of the batch before, which only the reader writes
	err  error  // ends the reader
	left func() // goes on reading on another goroutine
}

// takeBatch takes a batch that the sink has returned to free. Without one it makes one, or, if all have
// been made, waits; it returns nil if the session has ended.
func takeBatch(free chan *batch, made *int, done <-chan struct{}) *batch {
	select {
	case b := <-free:
		return b
	default:
	}
	if *made < maxBatches {
		*made++
		b := new(batch)
		b.done = func() { free <- b } // never blocks: there is room for all
		return b
	}
	select {
	case b := <-free:
		return b
	case <-done:
		return nil
	}
}

// batch returns an empty batch; nil if the session has ended.
func (r *reader) batch() *batch {
	b := takeBatch(r.free, &r.made, r.s.done)
	if b == nil {
		return nil
	}
	b.end, b.n, b.used = 0, 0, 0
	if n := max(r.size, len(r.rest)); len(b.buf) < n {
		b.buf = make([]byte, n)
	}
	return b
}

// run reads until the connection or the session ends.
func (r *reader) run() error {
	for {
		if r.err != nil {
			return r.reason()
		}
		b := r.batch()
		if b == nil {
			return nil
		}
		b.end = copy(b.buf, r.rest)
		start, err := r.parse(b, 0)
		for err == nil && (b.n == 0 || r.c.more() && b.end < len(b.buf) && b.n < batchFrames) {
			if b.n == 0 && start > 0 {
				b.end = copy(b.buf, b.buf[start:b.end])
				start = 0
			}
			if b.n == 0 && b.end == 0 && r.c.idle.Swap(false) {
				r.shrink(b)
			}
			if b.end == len(b.buf) { // a record is longer
				b.buf = append(b.buf, make([]byte, maxRecord)...)
			}
			var n int
			n, err = r.c.read(b.buf[b.end:])
			b.end += n
			r.s.p.octetsIn.Add(uint64(n))
			if b.end == len(b.buf) {
				r.size = min(batchGrowth*r.size, batchSize)
			}
			var bad error
			if start, bad = r.parse(b, start); bad != nil {
				err = bad
			}
		}
		r.rest, r.err = b.buf[start:b.end], err
		if b.n == 0 {
			b.done()
			continue
		}
		r.s.p.framesIn.Add(uint64(b.n))
		if !r.s.sink.Arrive(b.frames[:b.n], b.done, r.left) {
			return errLeft
		}
	}
}

// reason explains why the reader ends.
func (r *reader) reason() error {
	switch {
	case errors.Is(r.err, errIdle):
		r.s.finish()
		return nil
	case errors.Is(r.err, errRecord):
		r.s.p.bad.Add(1)
		return r.err
	case errors.Is(r.err, io.EOF), errors.Is(r.err, io.ErrUnexpectedEOF):
		return fmt.Errorf("host %s closed the connection", r.s.p.host.Name)
	}
	return fmt.Errorf("reading: %w", r.err)
}

// shrink frees the buffers of an idle connection, but for a small one.
func (r *reader) shrink(b *batch) {
	r.size = batchFirst
	b.spare = nil
	if len(b.buf) > batchFirst {
		b.buf = make([]byte, batchFirst)
	}
	if r.c.framed != nil {
		r.c.framed.shrink()
	}
	for {
		select {
		case <-r.free:
			r.made--
		default:
			return
		}
	}
}

// parse takes the complete records of b from start on, and returns where it stopped.
func (r *reader) parse(b *batch, start int) (int, error) {
	for b.end-start >= headSize && b.n < batchFrames {
		kind, size, err := parseHead(b.buf[start:])
		if err != nil {
			return start, err
		}
		if b.end-start < size {
			break
		}
		record := b.buf[start : start+size]
		if kind != recordFrame {
			content, err := decodeControl(kind, record)
			if err != nil {
				return start, err
			}
			if err := r.s.control(r.c.class, kind, content); err != nil {
				return start, err
			}
			start += size
			continue
		}
		f := b.next()
		used, err := decodeFrame(record, f, b.spare[b.used:])
		if errors.Is(err, errRoom) && b.used == 0 {
			b.spare = make([]byte, spareSize)
			used, err = decodeFrame(record, f, b.spare)
		}
		if errors.Is(err, errRoom) {
			break // the frames before are delivered first
		}
		if err != nil {
			return start, err
		}
		start += size
		if r.s.p.genuine(f) {
			b.used += used
			b.n++
		}
	}
	return start, nil
}

// control handles a record that is not a frame.
func (s *session) control(class, kind int, content []byte) error {
	switch {
	case kind == recordBeat && class == classHigh:
		// The goroutine that owns the nodes answers: if it stands still, the peer must not count tries. It
		// answers the last of many.
		s.asked.Store(binary.LittleEndian.Uint64(content))
		if s.answering.Swap(true) {
			break
		}
		s.sink.Underway(1, 0, func(int) {
			s.answering.Swap(false) // before the content is read: one that comes now asks again
			s.p.control(classHigh, recordAnswer, binary.LittleEndian.AppendUint64(nil, s.asked.Load()))
		})
	case kind == recordBeat:
		s.agreed.Store(binary.LittleEndian.Uint64(content) == beatSpare)
		s.p.control(class, recordAnswer, content)
	case kind == recordAnswer:
		if v := binary.LittleEndian.Uint64(content); class == classHigh && v == s.pinged.Load() {
			s.unanswered.Store(false)
			s.p.rtt.Store(int64(time.Since(s.started)) - int64(v))
		}
	case kind == recordTold && class == classHigh:
		s.p.told.Add(1)
		if told := s.p.l.cfg.Told; told != nil {
			told(s.p.host.Name, content)
		}
	case kind == recordIdle && s.p.udp == nil:
		s.seal()
		return errIdle
	default:
		return fmt.Errorf("%w: type %d on a connection that is in use", errRecord, kind)
	}
	return nil
}
