package mediate

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/owner"
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
	if len(s.touches) != 0 || len(m.calls) != 0 {
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
	if p := s.touches[block{1, 5}]; len(p.ranges) != 1 || p.sequence != 11 {
		t.Errorf("%+v", p)
	}
	var declined []device.Sequence
	s.att = &Attachment{Declined: func(_ device.NodeID, r mailbox.RAPF) bool {
		declined = append(declined, r.Sequence)
		return r.Sequence == 11
	}}
	if !rapf(1, 5, 11, true) || len(s.touches) != 0 || rapf(1, 5, 12, true) || !slices.Equal(declined, []device.Sequence{11, 12}) {
		t.Error("a RAPF that gives up is remembered, or not offered to pfd:", declined)
	}
	for i := range 3 * maxAsked {
		for range 2 * maxRanges {
			ask(netlink.Fault{Source: device.NodeID(i), VA: 0x1000, Pages: 1, PDID: 7})
		}
	}
	last := s.touches[block{3*maxAsked - 1, 0}]
	if len(s.touches) > maxAsked || last == nil || len(last.ranges) != maxRanges {
		t.Errorf("%d blocks, of the last %+v", len(s.touches), last)
	}
	// The slot's former tenant has left: a page that is entered late sends nothing.
	n.slots[3] = nil
	e.Done()
}

// TestOwnerDoesNotWaitForPages enters pages that a process has paged in. The owner does it itself
// only if pfd has mapped the share and there is room for all pages; else the slot's worker does.
func TestOwnerDoesNotWaitForPages(t *testing.T) {
	const va, pages = 0x10000000, 300
	m := &Machine{inline: true}
	var err error
	if m.loop, err = owner.New[work](owner.User[*slot](processes{m})); err != nil {
		t.Fatal(err)
	}
	defer m.loop.Close()
	n := &node{m: m}
	m.nodes = []*node{n}
	mem, err := shadow.New(shadow.Config{DMA: nowhere{}, Invalidate: func(int, device.VA, int) error { return nil }, VABits: 48, Window: 256 * device.PageSize})
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	n.slots[3] = &slot{node: n, index: 3}
	n.link.Store(&link{shadow: mem})
	fd, err := unix.MemfdCreate("touched", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, pages*device.PageSize); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	if err := mem.Share(3, va, pages*device.PageSize, fd, 0, true); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		what         string
		first, count int
		owner        bool
	}{
		{"the first page of a share that is not mapped", 0, 1, false},
		{"a page of a share that is mapped", 1, 1, true},
		{"64 pages, with room", 0, 64, true},
		{"64 more", 64, 64, true},
		{"64 more", 128, 64, true},
		{"38 more", 192, 38, true},
		{"64 pages, with room for 26", 230, 64, false},
	} {
		m.Asked(0, 3, netlink.Fault{VA: device.VA(va + x.first*device.PageSize), Pages: uint16(x.count), Write: true})
		if got := len(m.calls) == 1; got != x.owner {
			t.Errorf("%s: on the owner: %v, want %v", x.what, got, x.owner)
		}
		for _, c := range m.calls {
			c.Run()
		}
		if m.calls == nil {
			m.loop.Doze()
			for !m.loop.Posted() {
				m.loop.Wait(-1)
			}
			m.loop.Rouse(0)
			m.loop.Take(work.Done)
		}
		m.calls = nil
	}
	if got := mem.Stats().PageIns; got != 7 {
		t.Errorf("%d page-ins, want 7", got)
	}
}
