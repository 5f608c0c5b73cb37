package emu

import (
	"slices"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc"
)

// item is an action that a node wants done.
type item struct {
	node   *node
	action soc.Action
}

// itemQueue is a queue of actions, from head on.
type itemQueue struct {
	items []item
	head  int
}

func (q *itemQueue) len() int { return len(q.items) - q.head }

func (q *itemQueue) some() bool { return q.head < len(q.items) }

func (q *itemQueue) add(it item) {
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	} else if q.head >= passWork && q.head > len(q.items)/2 {
		// One that is never quite empty does not grow for ever.
		q.items, q.head = slices.Delete(q.items, 0, q.head), 0
	}
	q.items = append(q.items, it)
}

// passWork is how many pieces of work a pass does before it looks at the processes
// and the clock again, some 100 us of data; processes' doorbells are not taken while
// half as many urgent ones wait (ours).
const passWork = 64

// queueOf gives the queue of an action. All is urgent but what is, or leads to,
// moving data of the medium or low class, which would be in the way of all else.
// Of that, what has left its source goes before what has not: it ends blocks, and
// blocks that end together have their successors' memory read by one call.
func (e *Engine) queueOf(a *soc.Action) *itemQueue {
	switch a.Kind {
	case soc.Walk, soc.Move:
		switch {
		case a.Access.High:
			return &e.urgent
		case a.Access.Write:
			return &e.arriving
		}
		return &e.leaving
	case soc.Transmit:
		if len(a.Frame.Payload) > 0 && !a.Frame.Short() {
			return &e.arriving
		}
	}
	return &e.urgent
}

// deliverMail moves messages from the node's mailbox into the process's ring, as
// far as there is room; the rest follows when the process has taken some. It reports
// whether it has moved any.
func (e *Engine) deliverMail(s *slot) bool {
	return s.process.Deliver(func(m *attach.Mail) bool {
		box := device.MailboxProcess + s.index
		source, words, ok := s.node.soc.TakeMail(box)
		if !ok {
			return false
		}
		if e.recorder != nil {
			e.recorder.Take(e.clock.now, s.node.index, box, source, &words, ok)
		}
		*m = attach.Mail{Source: source.Encode(), Words: words}
		return true
	})
}
