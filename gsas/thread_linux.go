package gsas

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/rdma"
)

// Times (spec/gsas.md 3; defined by this project). An answer is asked for again after askAgain. A unit
// that has not answered for silence is gone; the link to its host may be down for that long. A unit that
// refuses for lack of room is asked for patience. A unit keeps an answer for 30 s at least; a process that was
// stopped for longGap between two asks does not ask again.
const (
	askAgain = 20 * time.Millisecond
	silence  = 9 * time.Second
	patience = 500 * time.Millisecond
	longGap  = 10 * time.Second
)

// Thread is a thread of the global address space: a packetizer and a mailbox of its process's endpoint. It
// is no thread of the operating system. Its methods are safe for concurrent use; four operations are in
// flight at once, and further ones wait.
type Thread struct {
	t       *rdma.Thread
	node    device.NodeID
	free    chan int      // packetizer channels without an operation
	closing chan struct{} // closed when Close begins
	once    sync.Once

	mu    sync.Mutex // guards the mailbox, and calls but their done
	calls [device.PktzChannels]call
}

// call is the operation in flight of a channel.
type call struct {
	node   device.NodeID
	number uint16
	open   bool // its answer is awaited
	waits  bool // its unit has answered that it waits for a page
	done   atomic.Bool
	answer atomics.Answer
}

// NewThread makes a thread that is the root of a new tree. The endpoint must have
// rdma.Options.Threads. Errors are those of rdma.Endpoint.NewThread.
func NewThread(ep *rdma.Endpoint) (*Thread, error) { return newThread(ep, Token{}) }

// Join makes a thread in the tree with a token, which a process of the same user has begun with the
// same pfd, or with that of another host of the cluster. It waits for nine seconds for a link that is down.
// pfd's refusal is an *attach.RefusedError: with code attach.CodeNotFound if there is no such tree.
func Join(ep *rdma.Endpoint, token Token) (*Thread, error) {
	if token == (Token{}) {
		return nil, fmt.Errorf("join a tree: %w: the token is zero", rdma.ErrRequest)
	}
	for end := time.Now().Add(silence); ; time.Sleep(askAgain) {
		t, err := newThread(ep, token)
		// The pfd of the root of the tree has not answered. Other requests of the endpoint have their turn.
		var refused *attach.RefusedError
		if !errors.As(err, &refused) || refused.Code != attach.CodeBusy || time.Now().After(end) {
			return t, err
		}
	}
}

func newThread(ep *rdma.Endpoint, token Token) (*Thread, error) {
	r, err := ep.NewThread(token)
	if err != nil {
		return nil, err
	}
	t := &Thread{t: r, node: ep.Info().Node, free: make(chan int, device.PktzChannels), closing: make(chan struct{})}
	for c := range device.PktzChannels {
		t.free <- c
	}
	return t, nil
}

// ID returns the thread's id, which Alive takes.
func (t *Thread) ID() uint32 { return t.t.Info().ID }

// Node returns the node of the thread.
func (t *Thread) Node() device.NodeID { return t.node }

// Tree returns the tree's protection id, which is the id of its root.
func (t *Thread) Tree() uint32 { return t.t.Info().Protection }

// Directory returns the address of a page, on the root's node, that only this tree can have, for what its
// threads need to find. It is allocated by naming it as the hint of Alloc.
func (t *Thread) Directory() Address { return atomics.Protection(t.Tree()).Directory() }

// Token returns the tree's token. A process of this user that has it can join the tree.
func (t *Thread) Token() Token { return Token(t.t.Info().Token) }

// Close ends the thread, and operations in flight with ErrClosed. The tree's pages are freed with its
// last thread. If pfd refuses that, Close may be called again.
func (t *Thread) Close() error {
	t.once.Do(func() {
		close(t.closing)
		t.t.Wake()
		for range device.PktzChannels {
			<-t.free // nothing of this process uses the thread's pages any more
		}
	})
	return t.t.Close()
}

// do performs an operation.
func (t *Thread) do(ctx context.Context, op atomics.Op, a Address, args ...uint64) (atomics.Answer, error) {
	answer, err := t.try(ctx, op, a, args)
	for pause := time.Millisecond; errors.Is(err, ErrBusy) && pause <= patience; pause *= 2 { // nothing was done
		select {
		case <-time.After(pause):
			answer, err = t.try(ctx, op, a, args)
		case <-ctx.Done():
			return answer, &Error{op.String(), a, fmt.Errorf("%w: %w", err, ctx.Err())}
		}
	}
	if err != nil {
		err = &Error{op.String(), a, err}
	}
	return answer, err
}

func (t *Thread) try(ctx context.Context, op atomics.Op, a Address, args []uint64) (answer atomics.Answer, err error) {
	node, ok := a.Node()
	if !ok || op.Bytes() != 0 && uint64(a)%uint64(op.Bytes()) != 0 {
		return answer, ErrAddress
	}
	if err := ctx.Err(); err != nil {
		return answer, err
	}
	if t.closed() {
		return answer, ErrClosed
	}
	var c int
	select {
	case c = <-t.free:
	case <-t.closing:
		return answer, ErrClosed
	case <-ctx.Done():
		return answer, ctx.Err()
	}
	defer func() { t.free <- c }()
	var words [device.PktzMaxWords]uint64
	r := atomics.Request{Op: op, Address: a}
	copy(r.Args[:], args)
	n := r.Encode(words[:])
	number := t.t.Next(c, node)
	p := &t.calls[c]
	t.mu.Lock()
	p.node, p.number, p.open, p.waits = node, number, true, false
	p.done.Store(false)
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		p.open = false
		t.mu.Unlock()
	}()
	for began := time.Now(); ; {
		asked := time.Now()
		sent := t.t.Send(c, node, number, words[:n])
		if err := t.await(ctx, c); err != nil {
			return answer, err
		}
		t.take() // the process may have been stopped since the last look
		if p.done.Load() {
			break
		}
		if sent && t.t.Refused(c) {
			return answer, fmt.Errorf("%w: node %d takes no requests, or there is no such node: exanetctl node and exanetctl host name those that there are", ErrAddress, node)
		}
		if time.Since(asked) >= longGap {
			return answer, fmt.Errorf("%w: the process was stopped for %v, and the operation may have been done", ErrGone, time.Since(asked))
		}
		if t.waits(p) || t.t.Unread(c) { // pfd may be stopped: the attachment's end would be known
			began = time.Now()
		}
		if time.Since(began) >= silence {
			return answer, fmt.Errorf("%w: no answer of node %d within %v, although the operation may have been done", ErrGone, node, silence)
		}
	}
	if p.answer.Status != atomics.OK {
		err = statusErrors[p.answer.Status]
		if err == nil {
			err = fmt.Errorf("%w: %v", ErrGone, p.answer.Status)
		}
		return p.answer, err
	}
	return p.answer, nil
}

// await waits until the call of a channel is done, at most until its answer is to be asked for again. It
// spins first.
func (t *Thread) await(ctx context.Context, c int) error {
	p := &t.calls[c]
	look := func() bool {
		if p.done.Load() || !t.t.HasMail() {
			return p.done.Load()
		}
		t.take()
		return p.done.Load()
	}
	if t.t.Spin(look) {
		return nil
	}
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, t.t.Wake)()
	}
	for until := time.Now().Add(askAgain); ; {
		// A caller that has taken the answer of this one holds the lock until the answer is there.
		err := t.t.Wait(time.Until(until), func() bool {
			t.take()
			return p.done.Load() || t.t.Refused(c) || ctx.Err() != nil || t.closed()
		})
		switch {
		case p.done.Load():
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", ErrGone, err)
		case t.closed():
			return ErrClosed
		case ctx.Err() != nil:
			return fmt.Errorf("the operation may have been done: %w", ctx.Err())
		case t.t.Refused(c), !time.Now().Before(until):
			return nil
		}
	}
}

func (t *Thread) closed() bool {
	select {
	case <-t.closing:
		return true
	default:
		return false
	}
}

// take takes the answers out of the mailbox. Each ends its call.
func (t *Thread) take() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		a, node, ok := t.t.Take()
		if !ok {
			return
		}
		p := &t.calls[a.Tag.Channel()]
		switch {
		case !p.open || p.done.Load() || p.node != node || p.number != a.Number: // of an operation that nobody awaits
		case a.Status == atomics.Waiting:
			p.waits = true
		default:
			p.answer = a
			p.done.Store(true)
		}
	}
}

// waits reports whether the unit has answered since the last call of waits that an operation waits for its
// page.
func (t *Thread) waits(p *call) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	waits := p.waits
	p.waits = false
	return waits
}
