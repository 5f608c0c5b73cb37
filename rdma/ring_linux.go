package rdma

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/sockets"
)

// Ring waits in Go's poller, which costs no thread, for words that peers write into this process, or
// for messages to its mailbox. Only one goroutine waits at a time.
//
// Wait returns when something may have come since the last Wait returned, or since the ring was made.
// So a receiver looks before each Wait:
//
//	for !arrived() {
//		if err := ring.Wait(ctx); err != nil {
//			return err
//		}
//	}
//
// While it finds something at each look it makes no system call, and pfd at most one.
type Ring struct {
	ep    *Endpoint
	va    device.VA
	size  uint64
	words []uint64 // keeps it from the garbage collector
	arms  *arms
	arm   int // of arms
	file  *os.File
	raw   syscall.RawConn

	waiting sync.Mutex
	drain   func(fd uintptr) bool // empties the socket; r.take, allocated once
	buf     [8]byte
	end     error // that drain met

	closing sync.Once
	closed  atomic.Bool
	result  error // of Close
}

// waits are an endpoint's rings. The endpoint's lock guards them.
type waits struct {
	open   []*Ring
	arms   *arms
	mail   uint8 // the rings of the mailbox that are in use, a bit each
	guards bool  // a goroutine notices that pfd was killed
}

// wake wakes all that wait on rings: the attachment has ended.
func (w *waits) wake() {
	for _, r := range w.open {
		_ = r.file.SetReadDeadline(past) // fails if it is closed, and nobody waits
	}
}

// close closes the descriptors of all rings: the endpoint is closed.
func (w *waits) close() {
	for _, r := range w.open {
		_ = r.file.Close() // fails if it is closed
	}
	w.open = nil
}

var past = time.Unix(1, 0)

// arms is memory that is shared with pfd, with a word ARM for each ring (docs/attach.md 11). It stays
// mapped until no ring uses it.
type arms struct {
	b    *Buffer
	used [attach.MaxRings / 64]uint64
}

// take returns the number of a free word, -1 if there is none.
func (a *arms) take() int {
	for i, w := range a.used {
		if free := bits.TrailingZeros64(^w); free < 64 {
			a.used[i] |= 1 << free
			return 64*i + free
		}
	}
	return -1
}

func (a *arms) give(n int) { a.used[n/64] &^= 1 << (n % 64) }

// Ring returns a ring of words of this process, that is of memory to which peers let completion words
// be written (Notification); the words of a transfer wake one ring. It keeps words referenced until
// Close. Without words it is a ring of the mailbox: messages, ends of this endpoint's transfers and
// reads, and completion words that no other ring watches.
//
// A process has at most 1024 rings, 8 of them of the mailbox. Errors match ErrBusy (all are in use),
// ErrGone, ErrClosed or the kernel's (unix.EMFILE: the process may open no more descriptors); pfd's
// refusal is an *attach.RefusedError, with code 12 if another ring watches some of the words, 14 if its
// user has its share of rings.
func (e *Endpoint) Ring(words []uint64) (*Ring, error) {
	r, err := e.ring(words)
	if err != nil {
		return nil, fmt.Errorf("making a ring: %w", err)
	}
	return r, nil
}

func (e *Endpoint) ring(words []uint64) (*Ring, error) {
	a, err := e.sharedArms()
	if err != nil {
		return nil, err
	}
	r := &Ring{ep: e, words: words, size: 8 * uint64(len(words)), arms: a}
	if r.size > 0 { // else of the mailbox
		r.va = VAOf(words)
	}
	if err := e.reserve(r); err != nil {
		return nil, err
	}
	m := attach.Ring{Product: attach.Product(), VA: r.va, Size: r.size, Arm: VAOf(a.b.b) + device.VA(4*r.arm)}
	armWord(a.b.b, r.arm).Store(0) // makes its page present
	e.asking.Lock()
	fd, err := e.exchange(m.Append(nil), attach.Shared{VA: r.va, Size: r.size, Answered: attach.TypeRing})
	if err == nil {
		err = r.open(fd)
	}
	refused, _ := errors.AsType[*attach.RefusedError](err)
	if err != nil && refused == nil { // pfd has the ring, or makes it later
		u := attach.Range{Product: attach.Product(), Type: attach.TypeUnring, VA: r.va, Size: r.size}
		e.undo(u.Append(nil))
	}
	e.asking.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.releaseLocked(r)
		if refused != nil && a.used == (arms{}).used && e.waits.arms == a {
			e.waits.arms = nil // perhaps it could not be shared then: the next ring tries again
		}
		return nil, err
	}
	e.waits.open = append(e.waits.open, r)
	if !e.waits.guards {
		e.waits.guards = true
		e.workers.Go(e.guard)
	}
	r.setArm()
	return r, nil
}

// sharedArms returns the memory of the words ARM.
func (e *Endpoint) sharedArms() (*arms, error) {
	e.mu.Lock()
	a := e.waits.arms
	err := e.goneLocked()
	e.mu.Unlock()
	if a != nil || err != nil {
		return a, err
	}
	b, err := e.allocShared(4*attach.MaxRings, false)
	if err == nil && b.private != nil {
		err = errors.Join(b.private, b.Free())
	}
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waits.arms != nil { // by another goroutine meanwhile
		return e.waits.arms, b.Free()
	}
	a = &arms{b: b}
	// The mapping outlives the endpoint: a waiter may still write its word. The cleanup must not refer to
	// the endpoint, which refers to a.
	runtime.AddCleanup(a, func(b []byte) { _ = unix.Munmap(b) }, b.b)
	e.waits.arms = a
	return a, nil
}

// reserve takes a word ARM and, for the mailbox, a number.
func (e *Endpoint) reserve(r *Ring) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := &e.waits
	if r.va == 0 {
		n := bits.TrailingZeros8(^w.mail)
		if n >= attach.MaxMailRings {
			return fmt.Errorf("%w: the mailbox has %d rings: close one", ErrBusy, n)
		}
		r.size = uint64(n)
	}
	if r.arm = r.arms.take(); r.arm < 0 {
		return fmt.Errorf("%w: the process has %d rings: close one", ErrBusy, attach.MaxRings)
	}
	if r.va == 0 {
		w.mail |= 1 << r.size
	}
	return nil
}

// releaseLocked undoes reserve.
func (e *Endpoint) releaseLocked(r *Ring) {
	r.arms.give(r.arm)
	if r.va == 0 {
		e.waits.mail &^= 1 << r.size
	}
}

// open takes the descriptor that came from pfd.
func (r *Ring) open(fd int) error {
	if fd < 0 {
		return sockets.ErrDescriptors
	}
	if err := unix.SetNonblock(fd, true); err != nil { // os.File must use the poller
		return errors.Join(os.NewSyscallError("fcntl", err), unix.Close(fd))
	}
	r.file = os.NewFile(uintptr(fd), "ring")
	r.drain = r.take
	var err error
	r.raw, err = r.file.SyscallConn()
	return err
}

// setArm makes pfd wake the process from now on. The caller looks afterwards for words that came
// before.
func (r *Ring) setArm() { armWord(r.arms.b.b, r.arm).Store(1) }

// take empties the socket. It reports whether there was something, or the socket has ended.
func (r *Ring) take(fd uintptr) (some bool) {
	for {
		n, err := unix.Read(int(fd), r.buf[:])
		switch {
		case err == nil && n > 0:
			some = true
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return some
		case err == nil:
			r.end = errEnded
		default:
			r.end = os.NewSyscallError("read", err)
		}
		return true
	}
}

// errEnded says that pfd has closed its end.
var errEnded = errors.New("pfd has closed the ring")

// Wait waits until something may have come for the ring; see Ring. It does not spin. Errors are ctx's,
// or match ErrClosed or ErrGone.
func (r *Ring) Wait(ctx context.Context) error {
	r.waiting.Lock()
	defer r.waiting.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := r.ep.gone(); err != nil {
		return fmt.Errorf("waiting on a ring: %w", err)
	}
	if ctx.Done() != nil {
		expired := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			defer close(expired)
			_ = r.file.SetReadDeadline(past) // fails if it is closed, which ends the wait
		})
		defer func() {
			if !stop() {
				<-expired
				_ = r.file.SetReadDeadline(time.Time{}) // as above
			}
		}()
	}
	err := r.raw.Read(r.drain)
	if err == nil && r.end == nil {
		r.setArm()
		return nil
	}
	if errors.Is(r.end, errEnded) && !r.closed.Load() { // pfd has ended the attachment, and says so
		select {
		case <-r.ep.over:
		case <-ctx.Done():
		}
	}
	switch gone := r.ep.gone(); {
	case r.closed.Load():
		err = fmt.Errorf("%w: the ring was closed", ErrClosed)
	case gone != nil:
		err = gone
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		err = r.end
	}
	return fmt.Errorf("waiting on a ring: %w", err)
}

// guard ends the endpoint if pfd was killed and the kernel does not say so: a thread of it still sleeps
// there and keeps the connection.
func (e *Endpoint) guard() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-e.over:
			return
		case <-tick.C:
			if e.conn.PeerKilled() {
				e.end(attach.ReasonLost, "pfd was killed, and a thread of it still sleeps in the kernel")
			}
		}
	}
}

// Close ends the ring; a Wait in progress returns an error that matches ErrClosed. A later call returns
// the same result.
func (r *Ring) Close() error {
	r.closing.Do(func() { r.result = r.close() })
	return r.result
}

func (r *Ring) close() error {
	e := r.ep
	r.closed.Store(true)
	m := attach.Range{Product: attach.Product(), Type: attach.TypeUnring, VA: r.va, Size: r.size}
	e.asking.Lock()
	_, err := e.exchange(m.Append(nil), attach.Shared{VA: r.va, Size: r.size, Answered: m.Type})
	e.asking.Unlock()
	if errors.Is(err, ErrGone) || errors.Is(err, ErrClosed) {
		err = nil // all rings ended with the attachment
	}
	e.mu.Lock()
	e.waits.open = slices.DeleteFunc(e.waits.open, func(o *Ring) bool { return o == r })
	if err == nil { // else pfd may still use the word
		e.releaseLocked(r)
	}
	e.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("closing a ring: %w", err)
	}
	if closed := r.file.Close(); !errors.Is(closed, os.ErrClosed) { // else the endpoint was closed before
		err = errors.Join(err, closed)
	}
	return err
}
