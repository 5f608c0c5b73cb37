package rdma

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
)

// MaxReads is how many reads an endpoint may have open: as many as a domain has read channels
// (spec/hardware.md 1).
const MaxReads = device.ChannelsPerSlot - device.WriteChannels

// Times of a read, defined by this project. An unanswered request is sent again; the target drops
// a duplicate.
const (
	readAgain   = 20 * time.Millisecond // TIMEOUT_US at reset
	readLast    = 320 * time.Millisecond
	readRefused = time.Millisecond // after code 3: too many wait at the target
	// cancelTries is how often a cancel is sent.
	cancelTries = 64
)

// ReadRequest describes a read.
type ReadRequest struct {
	// Dst is the destination. The transfer keeps it referenced until it is final; if it fails, the
	// endpoint does until Close, because blocks may still arrive. If Dst is nil, DstVA and Size
	// name the destination, memory that the caller keeps mapped.
	Dst   []byte
	DstVA device.VA
	Size  uint64 // bytes, with DstVA; 1..2^32-1

	Src    Remote
	Offset uint64 // bytes from the start of Src
	// Wait waits for a free place instead of returning ErrBusy.
	Wait bool
	// Queue, if not nil, receives the transfer when it is final.
	Queue *Queue
	ID    uint64 // for the caller: returned by Transfer.ID
}

// reads is the state of an endpoint's reads. The endpoint's lock guards it.
type reads struct {
	// once guards words, the completion words of the places (16 bytes each); word is the last one
	// of each. They live as long as the endpoint's handles, which may poll them at any time.
	once    sync.Mutex
	words   []byte
	word    [MaxReads]*uint64
	free    uint32
	broken  uint32 // places whose read never reported its end
	open    [MaxReads]*readState
	use     [MaxReads]uint16 // counts the uses of a place
	last    uint64           // the last word used
	serving bool             // the goroutine that asks again runs
	more    chan struct{}
	strange uint64 // messages that answer no request
	// late keeps the destinations of failed reads referenced: blocks may arrive until the endpoint
	// is closed.
	late map[*byte]struct{}
}

// readState is one read in flight.
type readState struct {
	t      *Transfer
	place  int
	tag    uint16
	last   uint64
	words  [mailbox.ReadRequestWords]uint64
	due    time.Time
	wait   pauses // for a free channel of the packetizer
	pause  time.Duration
	cancel int // how often its end was requested
	busy   int // packetizer channel that may report a refusal, -1: none
}

// makeWords allocates the memory of the completion words, shared with pfd as Alloc's. It touches
// the memory so that the words do not fault. The memory lives as long as the endpoint and its
// handles.
func (e *Endpoint) makeWords() error {
	q := &e.reads
	q.once.Lock()
	defer q.once.Unlock()
	if q.words != nil {
		return nil
	}
	var b []byte
	if e.Info().SVA() && e.welcome.Method == MethodUFFD {
		// Alloc's memory is not shared there and would use one of the user's userfaultfds.
		b = make([]byte, device.PageSize)
	} else {
		shared, err := e.Alloc(device.PageSize)
		if err != nil {
			return fmt.Errorf("allocate completion words: %w", err)
		}
		b = shared.Bytes()
		// Only e references it.
		runtime.AddCleanup(e, func(b []byte) { _ = unix.Munmap(b) }, shared.b)
	}
	for i := range q.word {
		w, err := Word(b, uint64(16*i+8))
		if err != nil {
			return err
		}
		atomic.StoreUint64(w, 0)
		q.word[i] = w
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	q.words, q.free, q.more = b, ^uint32(0), make(chan struct{}, 1)
	return nil
}

// Read starts a read: the target's node writes the target's memory into this process's, and both
// may be absent. It returns the read's handle and does not wait for pfd, except that the first
// read shares memory with it. With r.Wait it waits for a free place until ctx ends. Errors match
// ErrRequest, ErrBusy (all 32 places in use), ErrClosed, ErrGone or ctx's. Later errors are the
// handle's: the target's domain does not admit this process (ErrDomain), an address is not mapped
// (ErrAddress), and so on.
//
// The target's process does not take part and does not notice.
func (e *Endpoint) Read(ctx context.Context, r ReadRequest) (*Transfer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := r.Queue.check(e); err != nil {
		return nil, err
	}
	t, m, err := e.describeRead(&r)
	if err != nil {
		return nil, err
	}
	if err := e.makeWords(); err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	for {
		started, err := e.startRead(t, m)
		if err != nil {
			return nil, fmt.Errorf("reading: %w", err)
		}
		if started {
			return t, nil
		}
		if !r.Wait {
			return nil, fmt.Errorf("%w: %d reads are open: wait for one, or set ReadRequest.Wait", ErrBusy, MaxReads)
		}
		if err := e.waitUntil(ctx, notifyFirstPause, notifyLastPause, e.hasPlace); err != nil {
			return nil, fmt.Errorf("read: wait for a place: %w", err)
		}
	}
}

func (e *Endpoint) describeRead(r *ReadRequest) (*Transfer, *mailbox.ReadRequest, error) {
	dst, size := r.DstVA, r.Size
	if r.Dst != nil {
		if r.DstVA != 0 || r.Size != 0 && r.Size != uint64(len(r.Dst)) {
			return nil, nil, fmt.Errorf("%w: both Dst and DstVA or Size are set: set only one", ErrRequest)
		}
		dst, size = VAOf(r.Dst), uint64(len(r.Dst))
	}
	limit := uint64(1) << e.welcome.VABits
	switch {
	case size == 0:
		return nil, nil, fmt.Errorf("%w: a read of 0 bytes: the least is 1", ErrRequest)
	case size > math.MaxUint32:
		return nil, nil, fmt.Errorf("%w: a read of %d bytes: the most is %d, split it", ErrRequest, size, uint32(math.MaxUint32))
	case r.Offset > r.Src.Len || r.Src.Len-r.Offset < size:
		return nil, nil, fmt.Errorf("%w: %d bytes at offset %d of %d exported bytes", ErrRequest, size, r.Offset, r.Src.Len)
	case uint64(dst) >= limit || size > limit-uint64(dst):
		return nil, nil, fmt.Errorf("%w: destination %v and %d bytes pass the %d bits of address that the node takes", ErrRequest, dst, size, e.welcome.VABits)
	}
	if err := r.Src.check(); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	m := &mailbox.ReadRequest{
		PDID: e.welcome.PDID, Size: uint32(size), Src: r.Src.VA + device.VA(r.Offset), Dst: dst, Target: r.Src.PDID, TargetGeneration: r.Src.Generation,
	}
	t := &Transfer{ep: e, id: r.ID, src: r.Dst, q: r.Queue, size: size, node: r.Src.Node, pdid: r.Src.PDID, dst: m.Src, own: dst, ch: -1}
	t.read = &readState{t: t, busy: -1}
	return t, m, nil
}

// startRead claims a place for t and requests the read; false: no place is free.
func (e *Endpoint) startRead(t *Transfer, m *mailbox.ReadRequest) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.goneLocked(); err != nil {
		return false, err
	}
	q := &e.reads
	e.takeMailLocked()
	if q.free == 0 {
		if e.harvestReadsLocked(); q.free == 0 {
			return false, nil
		}
	}
	t.q.start()
	s := t.read
	s.place = bits.TrailingZeros32(q.free)
	q.free &^= 1 << s.place
	q.use[s.place]++
	// A tag repeats after 512 uses of a place.
	s.tag = (q.use[s.place]*MaxReads | uint16(s.place)) & (1<<14 - 1)
	q.last++
	s.last = q.last
	m.Tag, m.First, m.Last = s.tag, s.last, s.last
	atomic.StoreUint64(q.word[s.place], 0)
	m.Notify = VAOf(q.words[16*s.place:])
	s.words = m.Encode()
	q.open[s.place] = s
	s.pause = readAgain
	e.askLocked(s, time.Now())
	if !q.serving {
		q.serving = true
		e.workers.Go(e.serveReads)
	}
	q.changed()
	return true, nil
}

// askLocked sends a read's request; if every channel of the packetizer is busy, it is retried
// soon.
func (e *Endpoint) askLocked(s *readState, now time.Time) {
	if s.cancel > 0 && s.busy >= 0 && e.pages.SendStatus(s.busy) == device.PktzBusy {
		s.due = now.Add(s.wait.next()) // the earlier request must not be sent after its cancel
		return
	}
	for c := range faultSend {
		if e.sendLocked(c, packetizer.Destination(s.t.node, device.MailboxRead, 0), 0, s.words[:]) {
			s.busy = c
			s.wait = pauses{}
			s.due = now.Add(s.pause)
			s.pause = min(2*s.pause, readLast)
			if s.cancel > 0 {
				s.cancel++
			}
			e.kickLocked()
			return
		}
	}
	s.due = now.Add(s.wait.next())
}

// changed makes serveReads compute again when the next request is due.
func (r *reads) changed() {
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// taken records that packetizer channel c carries another message now.
func (r *reads) taken(c int) {
	for _, s := range r.open {
		if s != nil && s.busy == c {
			s.busy = -1
		}
	}
}

// refusedLocked handles STATUS 2 of a packetizer channel: the node has no route to the target, or
// refuses the tag.
func (e *Endpoint) refusedLocked(c int) {
	for _, s := range e.reads.open {
		if s != nil && s.busy == c {
			s.busy = -1
			e.settleReadLocked(s, failed|uint32(device.StatusDecode), "the node refuses the request: no such node, or too many reads are open")
		}
	}
}

func (e *Endpoint) settleReadLocked(s *readState, final uint32, detail string) {
	q := &e.reads
	if q.open[s.place] != s {
		return
	}
	q.open[s.place] = nil
	q.free |= 1 << s.place &^ q.broken
	if final&failed != 0 && len(s.t.src) > 0 && uint8(final) != device.StatusDomain { // which no block passes
		if q.late == nil {
			q.late = map[*byte]struct{}{}
		}
		q.late[&s.t.src[0]] = struct{}{}
	}
	s.t.settle(final, detail)
}

// harvestReadsLocked settles the reads that have ended.
func (e *Endpoint) harvestReadsLocked() {
	for _, s := range e.reads.open {
		if s == nil {
			continue
		}
		if atomic.LoadUint64(e.reads.word[s.place]) == s.last {
			e.settleReadLocked(s, 0, "")
			continue
		}
		if s.busy >= 0 && e.pages.SendStatus(s.busy) == device.PktzRefused {
			e.refusedLocked(s.busy)
		}
	}
}

// takeMailLocked empties the mailbox's ring, whatever room the queues of messages have: a message
// never delays an answer of a target's firmware. It accepts answers only from a source with PDID
// 0, which no process has (spec/firmware.md).
func (e *Endpoint) takeMailLocked() {
	var m attach.Mail
	for {
		ok, full := e.pages.TakeMail(&m)
		if !ok {
			return
		}
		if full {
			e.kickLocked()
		}
		a, node, ok := e.messages.put(&m)
		if !ok {
			e.messages.count()
			continue
		}
		s := e.reads.open[int(a.Transaction)%MaxReads]
		if s == nil || s.tag != uint16(a.Transaction) || s.t.node != node {
			e.reads.strange++
			continue
		}
		status := uint32(a.Sequence) & device.DescStatusMask
		switch {
		case atomic.LoadUint64(e.reads.word[s.place]) == s.last:
			e.settleReadLocked(s, 0, "")
		case status == 0: // refused: ask again, for a cancel, too, since another request may have been accepted
			s.due = time.Now().Add(readRefused)
			e.reads.changed()
		case s.cancel > 0:
			e.settleReadLocked(s, failed|device.StatusAborted, "")
		default:
			e.settleReadLocked(s, failed|status, "")
		}
	}
}

// pollRead returns a read's state, with one load if nothing has arrived.
func (t *Transfer) pollRead() Status {
	e, s := t.ep, t.read
	if atomic.LoadUint64(e.reads.word[s.place]) != s.last && !e.pages.HasMail() && !e.anyRefused() {
		return Ongoing
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.takeMailLocked()
	e.harvestReadsLocked()
	if f := t.final.Load(); f != 0 {
		return statusOf(f)
	}
	return Ongoing
}

// anyRefused reports whether a packetizer channel reports a refusal.
func (e *Endpoint) anyRefused() bool {
	for c := range faultSend {
		if e.pages.SendStatus(c) == device.PktzRefused {
			return true
		}
	}
	return false
}

func (e *Endpoint) hasPlace() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.takeMailLocked()
	e.harvestReadsLocked()
	return e.reads.free != 0
}

// serveReads repeats the requests of unanswered reads for the life of the endpoint. It sleeps
// until one is due.
func (e *Endpoint) serveReads() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-e.over:
			return
		case <-e.reads.more:
		case <-timer.C:
		}
		e.mu.Lock()
		e.takeMailLocked()
		e.harvestReadsLocked()
		now := time.Now()
		next := now.Add(readLast)
		for _, s := range e.reads.open {
			if s == nil {
				continue
			}
			switch {
			case now.Before(s.due):
			case s.cancel > cancelTries:
				// The place may still be written: do not use it again.
				e.reads.broken |= 1 << s.place
				e.settleReadLocked(s, failed|device.StatusGone, "the target's node does not answer")
				continue
			default:
				e.askLocked(s, now)
			}
			if s.due.Before(next) {
				next = s.due
			}
		}
		idle := e.reads.open == [MaxReads]*readState{}
		e.mu.Unlock()
		timer.Stop()
		if !idle {
			timer.Reset(time.Until(next))
		}
	}
}

// abortReadLocked cancels a read by a request of size 0, which this project defines.
func (e *Endpoint) abortReadLocked(s *readState) {
	if s.cancel > 0 {
		return
	}
	s.cancel, s.pause = 1, readAgain
	s.words[0] &= 1<<32 - 1 // the size
	e.askLocked(s, time.Now())
	e.reads.changed()
}

// endReadsLocked settles all reads when the attachment has ended.
func (e *Endpoint) endReadsLocked(detail string) {
	e.harvestReadsLocked()
	for _, s := range e.reads.open {
		if s != nil {
			e.settleReadLocked(s, failed|device.StatusGone, detail)
		}
	}
}
