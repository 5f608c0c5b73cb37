package mediate

import (
	"errors"
	"math"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/space/shadow"
)

// Bounds for method touch. Values below are defined by this project.
const (
	// maxAsked bounds the blocks of a slot for which its process is asked: as many as one node has
	// in flight. A block that is dropped faults again.
	maxAsked = device.Transactions
	// maxRanges is more than the number of parts of one block.
	maxRanges = 8
)

// touches holds the pages for which the process of a slot was asked, by the block whose RAPF the
// process sends (method touch). The device walks tables that pfd keeps: pfd must enter the pages
// before it forwards the RAPF, or the block would fault again.
type touches map[block]*pages

type block struct {
	source      device.NodeID
	transaction device.TransactionID
}

// pages are the ranges of one block, one for each part. The notification is a part, too.
type pages struct {
	sequence device.Sequence
	ranges   []pageRange
}

type pageRange struct {
	va    device.VA
	pages int
	write bool
}

// Asked records that a slot's process is asked to page in by itself. A request that does not name
// its block (a source fault that was found by FAR) is not answered by a RAPF: Asked enters its pages
// at once, and the time-out retransmits the block. It must be called on the owner.
func (m *Machine) Asked(node, index int, f netlink.Fault) {
	n := m.nodes[node]
	s, l := n.slots[index], n.link.Load()
	if s == nil || l == nil {
		return
	}
	r := pageRange{f.VA.Page(), int(f.Pages), f.Write}
	if f.PDID == 0 {
		n.enter(&entry{slot: s, link: l, ranges: []pageRange{r}})
		return
	}
	k := block{f.Source, f.Transaction}
	p := s.touches[k]
	switch {
	case p == nil || p.sequence != f.Sequence:
		if p == nil && len(s.touches) >= maxAsked {
			clear(s.touches) // for most of these blocks no RAPF will come
		}
		if p = (&pages{sequence: f.Sequence}); s.touches == nil {
			s.touches = touches{}
		}
		s.touches[k] = p
	case len(p.ranges) >= maxRanges:
		return
	}
	p.ranges = append(p.ranges, r)
}

// entersFirst reports whether it has taken a message. It takes a RAPF for a block of touches: the RAPF
// is forwarded when the pages of the block are entered. It also takes a RAPF with the fail bit if
// pfd answers in place of the process. Any other RAPF is forwarded unchanged: the sender of the
// block checks it.
func (s *slot) entersFirst(l *link, channel int, msg *attach.Message) bool {
	r, err := mailbox.DecodeRAPF(msg.Words[0])
	if err != nil {
		return false
	}
	k := block{msg.Node, r.Transaction}
	p := s.touches[k]
	current := p != nil && p.sequence == r.Sequence
	if current {
		delete(s.touches, k)
	}
	switch {
	case r.Fail:
		return s.declined(msg.Node, r)
	case !current:
		return false
	}
	s.node.enter(&entry{slot: s, link: l, ranges: p.ranges, rapf: *msg, channel: channel, sends: true})
	return true
}

// enter enters pages: on the owner if they are few, since the process has paged them in already, and
// no share of theirs makes it wait.
func (n *node) enter(e *entry) {
	pages := 0
	for _, r := range e.ranges {
		pages += r.pages
	}
	inline := pages <= gup.MaxPages
	for _, r := range e.ranges {
		inline = inline && n.prompt(e.slot.index, r.va, pages) // room for all of them
	}
	n.do(e.slot.index, e, inline)
}

// declined reports whether pfd answers a block in place of the process.
func (s *slot) declined(source device.NodeID, r mailbox.RAPF) bool {
	return s.att.Declined != nil && s.att.Declined(source, r)
}

// entry is work that enters pages which the process has paged in.
type entry struct {
	slot    *slot
	link    *link
	ranges  []pageRange
	sends   bool // then forward rapf by channel
	rapf    attach.Message
	channel int

	denied bool // a page can never be entered
}

// Run enters the pages. Only the first page of a range must be present. The pages that a policy has
// added are entered up to a quarter of the window.
func (e *entry) Run() {
	for _, r := range e.ranges {
		err := enterRange(e.link.shadow, e.slot.index, r)
		if errors.Is(err, gup.ErrNotShared) || errors.Is(err, gup.ErrDenied) {
			e.denied = true
		}
	}
}

// Prefetch enters pages of one share that the process of a slot has paged in before any transfer
// accesses them, up to a quarter of the window. It is safe for concurrent use.
func (m *Machine) Prefetch(node, slot int, va device.VA, size uint64) {
	if l := m.nodes[node].link.Load(); l != nil {
		// Best effort: pages that are not entered fault.
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
			return nil // the policy added the rest
		}
		at += n
	}
	return nil
}

// Done forwards the RAPF, unless another process has the slot or the device is gone.
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
	s.post(e.link, &s.mail, e.channel, &e.rapf)
}
