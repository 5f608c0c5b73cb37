package rdma

import (
	"fmt"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

// messagesKept is how many messages of one kind, and how many refusals, an endpoint keeps until
// the program takes them. Further ones are dropped and counted. Defined by this project.
const messagesKept = 1024

// MaxMessageWords is the largest number of words of a message (messages.md 4).
const MaxMessageWords = device.PktzMaxWords

// Message is a message of another process. Node, Interface and PDID are written by the sender's
// node: no process can forge them.
type Message struct {
	Node      device.NodeID
	Interface uint8
	PDID      device.PDID
	N         int // words
	// Words are the message's N words. Bits [17:2] of the first are zero.
	Words [MaxMessageWords]uint64
	// Refused, if not 0, is the number of a message of this endpoint that Node has refused; N is
	// then 0. Only a handler (Endpoint.Handle) sees it: Receive returns a *RefusedError.
	Refused uint32
}

// RefusedError is the error of a message that its receiver's node has refused. It matches
// ErrRefused.
type RefusedError struct {
	Number uint32        // of the message, as returned by Send
	Node   device.NodeID // that refused it
	// Late says that the refusal arrived after Send had returned the message's number.
	Late bool
}

// Error returns the error with its possible causes and what to do.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("message %d to node %d: %v: send it again later if the receiver is alive; else take a new Remote of it, or let it accept this domain (Options.Accept, Options.AcceptGroup)",
		e.Number, e.Node, ErrRefused)
}

// Unwrap returns ErrRefused.
func (e *RefusedError) Unwrap() error { return ErrRefused }

// fifo is a queue of at most messagesKept elements.
type fifo[T any] struct {
	list []T
	head int // of list: the first element
}

func (q *fifo[T]) len() int { return len(q.list) - q.head }

// put appends v; it returns false if the queue is full.
func (q *fifo[T]) put(v *T) bool {
	if q.len() >= messagesKept {
		return false
	}
	if len(q.list) == cap(q.list) && q.head > 0 {
		q.list = q.list[:copy(q.list, q.list[q.head:])]
		q.head = 0
	}
	q.list = append(q.list, *v)
	return true
}

// take removes the first element; ok is false if there is none.
func (q *fifo[T]) take() (v T, ok bool) {
	if q.len() == 0 {
		return v, false
	}
	v = q.list[q.head]
	if q.head++; q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	}
	return v, true
}

// inbox sorts the messages of a process's mailbox: those of processes and the refusals of its own
// messages, by kind. The firmware's answers to reads are returned to the caller.
type inbox struct {
	kinds   [kinds]kindBox
	dropped uint64 // a queue was full, or the kind is reserved
}

// kindBox is the messages of one kind.
type kindBox struct {
	messages fifo[Message]
	refusals fifo[Message] // with Refused
	last     uint32        // number of the message that was sent last
}

// kinds is the number of kinds, in their order. The process's number of a message, in SEND, has
// the kind's index above numberBits bits of the message's number (defined by this project).
const (
	kinds      = 4
	numberBits = 14
)

// maxNumber is the largest number of a message; 1 follows it. libexanet returns numbers as int.
const maxNumber = 1<<31 - 1

func kindIndex(k mailbox.Kind) int {
	if k == mailbox.KindProgram {
		return 0
	}
	return int(k-mailbox.KindStream) + 1
}

// box returns the messages of a kind, nil if the kind is reserved.
func (b *inbox) box(k mailbox.Kind) *kindBox {
	if !k.Valid() {
		return nil
	}
	return &b.kinds[kindIndex(k)]
}

// next returns the number of the next message of a kind, never 0, and what SEND says of it.
func (b *inbox) next(k mailbox.Kind) (number uint32, send uint16) {
	number = b.box(k).last%maxNumber + 1
	return number, uint16(kindIndex(k)<<numberBits) | uint16(number&(1<<numberBits-1))
}

// number returns the number of a message from its low bits: that of the last one sent that has
// them.
func (b *kindBox) number(low uint16) uint32 {
	n := b.last - (b.last-uint32(low))&(1<<numberBits-1)
	if n == 0 || n > maxNumber { // before 1 is maxNumber
		n += maxNumber
	}
	return n
}

// len returns the number of messages and refusals that wait.
func (b *inbox) len() (n int) {
	for i := range b.kinds {
		n += b.kinds[i].messages.len() + b.kinds[i].refusals.len()
	}
	return n
}

// put takes a message of the mailbox. If it is the firmware's answer to a read it returns that and
// the node that it comes from.
func (b *inbox) put(m *attach.Mail) (a mailbox.Ack, node device.NodeID, answer bool) {
	src := mailbox.DecodeSource(m.Source)
	if src.PDID != device.PDIDFirmware {
		n := Message{Node: src.Node, Interface: src.Interface, PDID: src.PDID, N: min(src.Words, MaxMessageWords)}
		copy(n.Words[:n.N], m.Words[:])
		n.Words[0] &^= mailbox.WiredBits
		if k := b.box(mailbox.KindOf(m.Words[0])); n.N == 0 || k == nil || !k.messages.put(&n) {
			b.dropped++
		}
		return a, 0, false
	}
	if r, err := mailbox.DecodeRefusal(m.Words[0]); err == nil {
		k := &b.kinds[r.Number>>numberBits]
		b.refuse(k, k.number(r.Number), src.Node)
		return a, 0, false
	}
	a, err := mailbox.DecodeAnswer(m.Words[0])
	if err != nil {
		b.dropped++
	}
	return a, src.Node, err == nil
}

// refuse records a late refusal.
func (b *inbox) refuse(k *kindBox, number uint32, node device.NodeID) {
	if !k.refusals.put(&Message{Node: node, Refused: number}) {
		b.dropped++
	}
}

// take takes the next message of a kind, refusals first.
func (b *inbox) take(k mailbox.Kind) (Message, bool) {
	box := b.box(k)
	if m, ok := box.refusals.take(); ok {
		return m, true
	}
	return box.messages.take()
}
