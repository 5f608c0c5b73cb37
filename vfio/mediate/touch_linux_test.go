package mediate

import (
	"slices"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/space/shadow"
)

// nowhere is a device that takes every map.
type nowhere struct{}

func (nowhere) Ranges() ([]shadow.Range, error) {
	return []shadow.Range{{First: 0, Last: 1<<47 - 1}}, nil
}
func (nowhere) Kind() shadow.Kind                                   { return shadow.Files }
func (nowhere) MapDMA(_, _ uint64, _ int, _ uint64, _ uint32) error { return nil }
func (nowhere) UnmapDMA(_, _ uint64) error                          { return nil }

// TestAskedPages: the requests to a process are remembered up to a bound, by the block's newest
// sequence number. One RAPF for exactly that block is held back, once, and no other.
func TestAskedPages(t *testing.T) {
	m := &Machine{inline: true}
	n := &node{m: m}
	m.nodes = []*node{n}
	mem, err := shadow.New(shadow.Config{DMA: nowhere{}, Invalidate: func(int, device.VA, int) error { return nil }, VABits: 48, Window: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	s, l := &slot{node: n, index: 3}, &link{shadow: mem}
	n.slots[3] = s
	ask := func(f netlink.Fault) { m.Asked(0, 3, f) }
	rapf := func(source device.NodeID, id device.TransactionID, seq device.Sequence, fail bool) bool {
		msg := attach.Message{Node: source, Mailbox: device.MailboxRequest, N: 1}
		msg.Words[0] = mailbox.RAPF{Transaction: id, Sequence: seq, Fail: fail}.Encode()
		return s.entersFirst(l, 0, &msg)
	}
	ask(netlink.Fault{VA: 0x1000, Pages: 1, PDID: 7})
	if len(s.asked) != 0 || len(m.calls) != 0 {
		t.Error("a node without a device remembers something")
	}
	n.link.Store(l)

	ask(netlink.Fault{Source: 1, Transaction: 5, Sequence: 9, VA: 0x1234, Pages: 4, Write: true, PDID: 7})
	ask(netlink.Fault{Source: 1, Transaction: 5, Sequence: 9, VA: 0x9000, Pages: 1, Write: true, PDID: 7})
	for name, held := range map[string]bool{
		"another node": rapf(2, 5, 9, false), "another block": rapf(1, 6, 9, false), "an older sequence": rapf(1, 5, 8, false),
	} {
		if held {
			t.Errorf("a RAPF of %s is held back", name)
		}
	}
	if !rapf(1, 5, 9, false) || rapf(1, 5, 9, false) {
		t.Error("the block's RAPF is to be held back once")
	}
	if len(m.calls) != 1 {
		t.Fatalf("%d calls", len(m.calls))
	}
	e := m.calls[0].(*entry)
	if len(e.ranges) != 2 || e.ranges[0] != (pageRange{0x1000, 4, true}) || e.ranges[1].va != 0x9000 || !e.sends {
		t.Errorf("entered first: %+v", e)
	}
	// A block that has a new number is another one, and one that is given up waits for
	// nothing.
	ask(netlink.Fault{Source: 1, Transaction: 5, Sequence: 10, VA: 0x1000, Pages: 1, PDID: 7})
	ask(netlink.Fault{Source: 1, Transaction: 5, Sequence: 11, VA: 0x2000, Pages: 1, PDID: 7})
	if p := s.asked[block{1, 5}]; len(p.ranges) != 1 || p.sequence != 11 {
		t.Errorf("%+v", p)
	}
	var declined []device.Sequence
	s.att = &Attachment{Declined: func(_ device.NodeID, r mailbox.RAPF) bool {
		declined = append(declined, r.Sequence)
		return r.Sequence == 11
	}}
	if !rapf(1, 5, 11, true) || len(s.asked) != 0 || rapf(1, 5, 12, true) || !slices.Equal(declined, []device.Sequence{11, 12}) {
		t.Error("a RAPF that gives up is remembered, or not offered to pfd:", declined)
	}
	for i := range 3 * maxAsked {
		for range 2 * maxRanges {
			ask(netlink.Fault{Source: device.NodeID(i), VA: 0x1000, Pages: 1, PDID: 7})
		}
	}
	last := s.asked[block{3*maxAsked - 1, 0}]
	if len(s.asked) > maxAsked || last == nil || len(last.ranges) != maxRanges {
		t.Errorf("%d blocks, of the last %+v", len(s.asked), last)
	}
	// The slot's former tenant has left: a page that is entered late sends nothing.
	n.slots[3] = nil
	e.Done()
}
