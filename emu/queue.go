package emu

import (
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

func (q *itemQueue) some() bool { return q.head < len(q.items) }

func (q *itemQueue) reset() { q.items, q.head = q.items[:0], 0 }

// compact keeps a queue that is never quite empty from growing for ever.
func (q *itemQueue) compact() {
	if q.head > len(q.items)/2 && q.head >= passWork {
		left := copy(q.items, q.items[q.head:])
		clear(q.items[left:])
		q.items, q.head = q.items[:left], 0
	}
}

// quickFull is how many quick actions wait at most before processes' doorbells
// are taken (ours).
const quickFull = 32

// quickRow is how many quick actions go before one of the data at most, so that
// a stream of them starves nobody (ours).
const quickRow = 64

// queueOf gives the queue of an action: what is, or leads to, moving data of the
// medium or low class would be in the way of all else. What has left its source
// goes before what has not: it ends blocks, and blocks that end together have
// their successors' memory read by one call.
func (e *Engine) queueOf(a *soc.Action) *itemQueue {
	switch a.Kind {
	case soc.Walk, soc.Move:
		switch {
		case a.Access.High:
			return &e.quick
		case a.Access.Write:
			return &e.arriving
		}
		return &e.leaving
	case soc.Transmit:
		if len(a.Frame.Payload) > 0 && !a.Frame.Short() {
			return &e.arriving
		}
	}
	return &e.quick
}

// kicks tells whether some process has published something.
func (e *Engine) kicks() bool {
	for _, s := range e.live {
		if s.sends || s.att.Pages.Kick() != s.kick {
			return true
		}
	}
	return false
}

// deliverMail moves messages from the node's mailbox into the process's ring, as
// far as there is room; the rest follows when the process has taken some.
func (e *Engine) deliverMail(s *slot) {
	box := device.MailboxProcess + s.index
	s.mailWaits = false
	for any := false; ; any = true {
		source, words, ok := s.node.soc.PeekMail(box)
		if !ok {
			if any {
				s.att.Pages.Notify()
			}
			return
		}
		if !s.att.Pages.PutMail(s.mail, &attach.Mail{Source: source.Encode(), Words: words}) {
			s.mailWaits = true
			s.att.Pages.Notify()
			return
		}
		s.mail++
		source, words, ok = s.node.soc.TakeMail(box)
		if e.recorder != nil {
			e.recorder.Take(e.clock, s.node.index, box, source, &words, ok)
		}
	}
}
