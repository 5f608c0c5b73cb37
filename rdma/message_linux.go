package rdma

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
)

// messages are an endpoint's messages to and from other processes. The endpoint's lock guards all
// fields but waiting.
type messages struct {
	inbox
	waiting atomic.Int32 // inbox.len: readable without the lock
	crowded atomic.Int64 // until then receivers do not yield, Unix time in ns
	// channels are the packetizer's channels that carry a message whose STATUS is not read yet:
	// nothing else may use them.
	channels [faultSend]sentMessage
	posted   atomic.Bool // the Send of one of them has returned
	handled  map[mailbox.Kind]bool
}

// sentMessage is a message in a packetizer channel; its number 0 is none.
type sentMessage struct {
	number uint32
	node   device.NodeID
	kind   mailbox.Kind
	left   bool // its Send has returned
}

// firstMessage is the first of the packetizer's channels that carry messages; those before it are
// left to doorbells and reads.
const firstMessage = 1

// Send sends a message of one to eight words to the process that exported to: two stores and no
// system call while pfd is awake. It returns the message's number, which counts the endpoint's
// messages of its kind from 1, once the node has taken the message. Messages are not reliable: the receiver's
// mailbox has room for 64, and one on another node, or on any node without Info.SVA, may refuse a
// message after Send has returned. Receive then returns a *RefusedError with Late set.
//
// Bits [17:2] of the first word belong to the node and must be zero, and bits [23:18] are the
// message's kind: zero, except in the messages of this module's own packages.
//
// Errors match ErrRequest, ErrRefused, ErrClosed, ErrGone or ctx's. If ctx ends while the channels
// are taken, because pfd does not read them, the error also matches ErrBusy and nothing was sent.
// If it ends later, the number is that of a message that pfd has not read yet.
func (e *Endpoint) Send(ctx context.Context, to Remote, words ...uint64) (number uint32, err error) {
	if err := e.checkMessage(&to, words); err != nil {
		return 0, fmt.Errorf("sending a message: %w: %w", ErrRequest, err)
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	c, number, err := e.publish(&to, words, false)
	if err == nil && c < 0 {
		c, number, err = e.publishLater(ctx, to, words)
	}
	if err != nil {
		return 0, fmt.Errorf("sending a message: %w", err)
	}
	for began := time.Now(); e.pages.SendStatus(c) == device.PktzBusy; {
		if time.Since(began) >= SpinTime {
			err = e.waitTaken(ctx, c)
			break
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	m := &e.messages.channels[c]
	if err != nil {
		m.left = true
		e.messages.posted.Store(true)
		return number, fmt.Errorf("message %d waits for pfd: %w", number, err)
	}
	m.number = 0
	if e.pages.SendStatus(c) == device.PktzRefused {
		return number, &RefusedError{Number: number, Node: to.Node}
	}
	return number, nil
}

// checkMessage returns an error unless words may be sent to a Remote.
func (e *Endpoint) checkMessage(to *Remote, words []uint64) error {
	switch w := &e.welcome; {
	case len(words) == 0 || len(words) > MaxMessageWords:
		return fmt.Errorf("a message of %d words: it has 1 to %d", len(words), MaxMessageWords)
	case words[0]&mailbox.WiredBits != 0:
		return fmt.Errorf("the first word is %#x: its bits [17:2] are the node's and must be zero", words[0])
	case !mailbox.KindOf(words[0]).Valid():
		return fmt.Errorf("the first word is %#x: its bits [23:18] are kind %d, which is reserved", words[0], mailbox.KindOf(words[0]))
	case to.Interface == 0:
		return fmt.Errorf("%w: it does not name its process's interface: take the text of a process of this version", ErrRemote)
	case to.Node == w.Node && to.Interface == w.Interface && (to.Generation == w.Generation || to.Generation == 0):
		return errors.New("a message to its own sender")
	}
	return to.check()
}

// publishLater is publish that waits for a channel until ctx ends.
func (e *Endpoint) publishLater(ctx context.Context, to Remote, words []uint64) (c int, number uint32, err error) {
	words = slices.Clone(words) // the caller's may stay on its stack
	// pfd reports that it has read a message, but not a doorbell.
	ended := e.waitUntil(ctx, notifyFirstPause, notifyLastPause, func() bool {
		c, number, err = e.publish(&to, words, false)
		return c >= 0 || err != nil
	})
	switch {
	case ended != nil && ctx.Err() != nil:
		err = fmt.Errorf("%w: pfd does not read the messages in them: %w", ErrBusy, ended)
	case ended != nil:
		err = ended
	}
	return c, number, err
}

// waitTaken sleeps until pfd has read the message in packetizer channel c.
func (e *Endpoint) waitTaken(ctx context.Context, c int) error {
	return e.waitUntil(ctx, sleepCap, sleepCap, func() bool { return e.pages.SendStatus(c) != device.PktzBusy })
}

// publish writes a message to a channel of the packetizer, and returns the channel; it is negative
// if all are taken. With left nobody waits for the channel.
func (e *Endpoint) publish(to *Remote, words []uint64, left bool) (c int, number uint32, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.goneLocked(); err != nil {
		return -1, 0, err
	}
	e.settleMessagesLocked()
	e.takeMailLocked()
	b, kind := &e.messages, mailbox.KindOf(words[0])
	number, send := b.next(kind)
	destination := packetizer.Destination(to.Node, to.Interface, to.Generation)
	for c := faultSend - 1; c >= firstMessage; c-- {
		if e.sendLocked(c, destination, send, words) {
			b.box(kind).last = number
			b.channels[c] = sentMessage{number: number, node: to.Node, kind: kind, left: left}
			if left {
				b.posted.Store(true)
			}
			e.kickLocked()
			return c, number, nil
		}
	}
	return -1, 0, nil
}

// sendLocked writes words to packetizer channel c, unless that is in use. A refusal of the read
// request that the channel carried before is noticed first.
func (e *Endpoint) sendLocked(c int, destination uint64, number uint16, words []uint64) bool {
	if e.messages.channels[c].number != 0 {
		return false
	}
	refused := e.pages.SendStatus(c) == device.PktzRefused
	if !e.pages.SendTo(c, destination, number, words) {
		return false
	}
	if refused {
		e.refusedLocked(c)
	}
	e.reads.taken(c)
	return true
}

// settleMessagesLocked frees the channels of messages whose Send has returned and that pfd has
// read since.
func (e *Endpoint) settleMessagesLocked() {
	posted := false
	for c := range e.messages.channels {
		m := &e.messages.channels[c]
		if !m.left {
			continue
		}
		switch e.pages.SendStatus(c) {
		case device.PktzBusy:
			posted = true
			continue
		case device.PktzRefused:
			e.messages.refuse(e.messages.box(m.kind), m.number, m.node)
			e.messages.count()
		}
		*m = sentMessage{}
	}
	e.messages.posted.Store(posted)
}

// count stores the number of waiting messages and refusals.
func (b *messages) count() { b.waiting.Store(int32(b.len())) }

// Receive returns the next message of the program, kind 0. It spins for SpinTime, then sleeps
// until a message arrives; if ctx has ended it does not wait. Errors are ctx's, a late *RefusedError of a message of this endpoint,
// ErrClosed or ErrGone. Messages that arrived before the end of the attachment are returned first.
//
// An endpoint keeps 1024 messages; further ones are dropped and counted (Stats.MessagesDropped).
// Send, too, moves messages there from the mailbox: a program that sends many takes those that
// have arrived before each.
func (e *Endpoint) Receive(ctx context.Context) (Message, error) {
	m, err := e.receive(ctx, mailbox.KindProgram)
	if m.Refused != 0 {
		return Message{}, &RefusedError{Number: m.Refused, Node: m.Node, Late: true}
	}
	return m, err
}

// offerTime is how long a receiver spins before it offers its processor to others between two
// looks. Sender, pfd and receiver spin at once: on two processors one of them otherwise waits for
// the end of another's time slice (half a round trip took 66 us, now 3.5). Defined by this project.
const offerTime = 2 * time.Microsecond

// After a yield that took crowdedYield other programs use this processor. A thread that sleeps then
// gets it back sooner than one that yields, so for crowdedTime receivers do not yield. Defined by
// this project.
const (
	crowdedYield = 200 * time.Microsecond
	crowdedTime  = 100 * time.Millisecond
)

func (e *Endpoint) receive(ctx context.Context, k mailbox.Kind) (m Message, err error) {
	var ok bool
	if e.spin(func() bool {
		m, ok = e.nextMessage(k)
		return ok || ctx.Err() != nil
	}) {
		if !ok {
			err = ctx.Err()
		}
		return m, err
	}
	// All that arrives changes EVENT.
	err = e.waitUntil(ctx, sleepCap, sleepCap, func() bool {
		m, ok = e.nextMessage(k)
		return ok
	})
	if err != nil {
		err = fmt.Errorf("receiving a message: %w", err)
	}
	return m, err
}

// spin calls check until it returns true, which is then the result, or for SpinTime.
func (e *Endpoint) spin(check func() bool) bool {
	b := &e.messages
	for began := time.Now(); ; {
		if check() {
			return true
		}
		waited := time.Since(began)
		if waited >= SpinTime {
			return false
		}
		if waited >= offerTime {
			if b.crowded.Load() > began.UnixNano() {
				return false
			}
			_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
			if time.Since(began)-waited > crowdedYield {
				b.crowded.Store(began.Add(crowdedTime).UnixNano())
				return false
			}
		}
	}
}

// nextMessage takes the next message of a kind. It takes no lock if none waits.
func (e *Endpoint) nextMessage(k mailbox.Kind) (Message, bool) {
	b := &e.messages
	if b.waiting.Load() == 0 && !b.posted.Load() && !e.pages.HasMail() {
		return Message{}, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settleMessagesLocked()
	e.takeMailLocked()
	m, ok := b.take(k)
	b.count()
	return m, ok
}

// Handle makes a goroutine of the endpoint call f with each message of a kind, in the order of
// their arrival, until the attachment ends. It is for the module's own packages: a program's
// messages have kind 0, which Receive returns. Errors match ErrRequest, ErrClosed or ErrGone.
func (e *Endpoint) Handle(k mailbox.Kind, f func(Message)) error {
	if err := e.claimKind(k); err != nil {
		return err
	}
	e.workers.Go(func() {
		for {
			m, err := e.receive(context.Background(), k)
			if err != nil {
				return
			}
			f(m)
		}
	})
	return nil
}
