package mediate

import (
	"errors"
	"math"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/shadow"
)

// maxAsked bounds the blocks of a slot whose process is asked to bring pages in
// (ours): as many as one node has in flight. A block that is forgotten faults again.
const maxAsked = device.Transactions

// asked is what the process of a slot is asked for, by the block whose RAPF it is to
// send (method touch). The device has tables of its own: the pages are entered there
// before the RAPF goes on, or the block would fault again.
type asked map[block]*pages

type block struct {
	source      device.NodeID
	transaction device.TransactionID
}

// pages are the ranges of one block: an entry a part, the notification's too.
type pages struct {
	sequence device.Sequence
	ranges   []pageRange
}

type pageRange struct {
	va    device.VA
	pages int
	write bool
}

// maxRanges is more than one block has parts (ours).
const maxRanges = 8

// Asked says that a slot's process is asked to bring pages in by itself. Who cannot
// name the block sends no RAPF (a source fault told by FAR): its pages are entered
// at once, and the block's time-out sends it again. On the owner.
func (m *Machine) Asked(node, index int, f netlink.Fault) {
	n := m.nodes[node]
	s, l := n.slots[index], n.link.Load()
	if s == nil || l == nil {
		return
	}
	r := pageRange{f.VA.Page(), int(f.Pages), f.Write}
	if f.PDID == 0 {
		n.do(index, &entry{slot: s, link: l, ranges: []pageRange{r}}, 0, r.pages > gup.MaxPages)
		return
	}
	k := block{f.Source, f.Transaction}
	p := s.asked[k]
	switch {
	case p == nil || p.sequence != f.Sequence:
		if p == nil && len(s.asked) >= maxAsked {
			clear(s.asked) // most are of blocks for which no RAPF will come
		}
		if p = (&pages{sequence: f.Sequence}); s.asked == nil {
			s.asked = asked{}
		}
		s.asked[k] = p
	case len(p.ranges) >= maxRanges:
		return
	}
	p.ranges = append(p.ranges, r)
}

// entersFirst tells whether a message is a RAPF of a block whose pages are to be
// entered, which then goes on when they are, or one of a block that pfd answers in place
// of the process. One of anybody else's block goes on as it is: the sender judges it.
func (s *slot) entersFirst(l *link, channel int, msg *attach.Message) bool {
	r, err := mailbox.DecodeRAPF(msg.Words[0])
	if err != nil {
		return false
	}
	k := block{msg.Node, r.Transaction}
	p := s.asked[k]
	current := p != nil && p.sequence == r.Sequence
	if current {
		delete(s.asked, k)
	}
	switch {
	case r.Fail:
		return s.declined(msg.Node, r)
	case !current:
		return false
	}
	count := 0
	for _, r := range p.ranges {
		count += r.pages
	}
	s.node.do(s.index, &entry{slot: s, link: l, ranges: p.ranges, rapf: *msg, channel: channel, sends: true}, 0, count > gup.MaxPages)
	return true
}

// declined reports whether pfd answers a block in place of the process.
func (s *slot) declined(source device.NodeID, r mailbox.RAPF) bool {
	return s.att.Declined != nil && s.att.Declined(source, r)
}

// entry is work that enters pages which the process has brought in.
type entry struct {
	slot    *slot
	link    *link
	ranges  []pageRange
	sends   bool // and then the RAPF goes on, by this channel
	rapf    attach.Message
	channel int

	denied bool // a page can never be entered
}

// Run enters the pages. Only the first of a range must be there; what its policy
// adds is entered as far as a quarter of the window goes.
func (e *entry) Run() {
	for _, r := range e.ranges {
		err := enterRange(e.link.shadow, e.slot.index, r)
		if errors.Is(err, gup.ErrNotShared) || errors.Is(err, gup.ErrDenied) {
			e.denied = true
		}
	}
}

// Prefetch enters pages that the process of a slot has brought in before any transfer
// wants them: of one share, and as far as a quarter of the window goes. Any goroutine.
func (m *Machine) Prefetch(node, slot int, va device.VA, size uint64) {
	if l := m.nodes[node].link.Load(); l != nil {
		// Best effort: what is not entered faults.
		_ = enterRange(l.shadow, slot, pageRange{va: va.Page(), pages: int(min(size>>device.PageShift, math.MaxInt32))})
	}
}

func enterRange(m *shadow.Memory, slot int, r pageRange) error {
	most := max(1, int(m.Stats().Window/4>>device.PageShift))
	for at := 0; at < min(r.pages, most); {
		n := min(r.pages-at, most-at, gup.MaxPages)
		res := m.PageIn(slot, r.va+device.VA(at)<<device.PageShift, n, r.write)
		switch {
		case res.Err != nil && at == 0:
			return res.Err
		case res.Resident>>(n-1)&1 == 0:
			return nil // the rest was a guess
		}
		at += n
	}
	return nil
}

// Done sends the RAPF, as long as slot and device are those that it is of.
func (e *entry) Done() {
	s := e.slot
	if !e.sends || s.node.slots[s.index] != s || s.node.link.Load() != e.link {
		return
	}
	if r, err := mailbox.DecodeRAPF(e.rapf.Words[0]); err == nil && e.denied {
		if r.Fail = true; s.declined(e.rapf.Node, r) {
			return
		}
		e.rapf.Words[0] = r.Encode()
	}
	s.post(e.link, e.channel, &e.rapf)
}
