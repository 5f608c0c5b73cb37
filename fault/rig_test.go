package fault_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/fault/faulttest"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/netlink"
)

const ownNode = device.NodeID(0x155)

// rig is a driver of a node made of registers, with domains in slots.
type rig struct {
	t    testing.TB
	n    *faulttest.Node
	d    *fault.Driver
	time int64
}

func newRig(t testing.TB, change func(*faulttest.Node, *fault.Config)) *rig {
	r := &rig{t: t, n: faulttest.New()}
	cfg := fault.Config{Bus: r.n, Memory: r.n, Node: ownNode, Now: func() int64 { r.time++; return r.time }}
	if change != nil {
		change(r.n, &cfg)
	}
	if byQueues {
		bus := r.useQueues()
		cfg.Bus = bus
		r.d = fault.New(cfg)
		bus.Handle(r.d)
	} else {
		r.d = fault.New(cfg)
		r.n.Handler = r.d
	}
	t.Cleanup(func() {
		if len(r.n.Bad) != 0 {
			t.Errorf("accesses that reach no register: %q", accesses(r.n.Bad))
		}
	})
	return r
}

func pdidOf(slot int) device.PDID { return device.PDID(0x100 + slot) }

// gup adds a domain that a pager serves.
func (r *rig) gup(slot int, p fault.Policy) *pager {
	r.t.Helper()
	g := &pager{limit: 1 << 36}
	r.n.Pagers[slot] = g
	r.add(fault.Target{Slot: slot, Policy: p, Method: fault.GUP})
	return g
}

func (r *rig) touch(slot int, p fault.Policy) *delegate {
	r.t.Helper()
	a := &delegate{}
	r.add(fault.Target{Slot: slot, Policy: p, Method: fault.Touch, Delegate: a})
	return a
}

func (r *rig) add(t fault.Target) {
	r.t.Helper()
	t.PDID = pdidOf(t.Slot)
	r.n.Set64(device.PL, device.PLPktzCfg+8*uint32(t.Slot), uint64(t.PDID)|device.CfgEnable)
	if err := r.d.Add(t); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) run() {
	r.t.Helper()
	if !r.n.Run() {
		r.t.Fatal("the driver does not come to rest")
	}
}

// entry returns a fault at slot's page of transaction tr from node 7.
func entry(slot int, tr device.TransactionID, seq device.Sequence, page uint64) device.FaultEntry {
	return device.FaultEntry{Source: 7, Transaction: tr, Sequence: seq, PDID: pdidOf(slot), Page: page, Response: device.ResponseSlaveError}
}

// rapf is a message in the notation of the tests.
type rapf struct {
	iface int
	node  device.NodeID
	tr    device.TransactionID
	seq   device.Sequence
	fail  bool
}

// sent returns the RAPFs sent so far, in the order of transactions, and checks their common
// fields.
func (r *rig) sent() []rapf {
	r.t.Helper()
	if byQueues {
		r.run() // the commands are in flight
	}
	return r.decoded()
}

// decoded is sent without waiting for messages in flight.
func (r *rig) decoded() []rapf {
	r.t.Helper()
	var out []rapf
	for _, m := range r.n.Sent {
		w, err := mailbox.DecodeRAPF(m.Words[0])
		if err != nil || m.Len != 1 || m.Mailbox != 1 {
			r.t.Errorf("sent %+v: %v; want one RAPF to mailbox 1", m, err)
		}
		if want := pdidOf(m.Interface); w.PDID != want || w.Claimed != want || m.PDID != want {
			r.t.Errorf("RAPF of packetizer %d carries PDIDs %d, %d, %d; want %d", m.Interface, w.PDID, w.Claimed, m.PDID, want)
		}
		out = append(out, rapf{m.Interface, m.Node, w.Transaction, w.Sequence, w.Fail})
	}
	r.n.Sent = r.n.Sent[:0]
	slices.SortStableFunc(out, func(a, b rapf) int { return int(a.tr) - int(b.tr) })
	return out
}

func (r *rig) wantSent(want ...rapf) {
	r.t.Helper()
	if got := r.sent(); !slices.Equal(got, want) {
		r.t.Errorf("RAPFs sent\n got %+v\nwant %+v", got, want)
	}
}

// pageIn is one call of a pager.
type pageIn struct {
	page  uint64
	pages int
	write bool
}

// pager is a process's memory: mapped below limit except for holes, with pages that fail for a
// while.
type pager struct {
	calls  []pageIn
	limit  uint64
	holes  map[uint64]error
	passes map[uint64]int // page: this many tries fail
	kind   gup.Kind
	fail   error // for every page
	there  bool  // every page was resident before
	quiet  bool  // do not record calls
}

var errBusy = errors.New("not now")

func (p *pager) PageIn(va device.VA, pages int, write bool) gup.Result {
	first := uint64(va >> device.PageShift)
	if !p.quiet {
		p.calls = append(p.calls, pageIn{first, pages, write})
	}
	r := gup.Result{Kind: p.kind}
	for i := range pages {
		if err := p.page(first + uint64(i)); err != nil {
			if i == 0 {
				r.Err = err
			}
			break
		}
		r.Resident |= 1 << i
		if r.There = p.there; !p.there {
			r.New |= 1 << i
		}
	}
	return r
}

func (p *pager) page(n uint64) error {
	switch {
	case p.fail != nil:
		return p.fail
	case p.passes[n] > 0:
		p.passes[n]--
		return errBusy
	case p.holes[n] != nil:
		return p.holes[n]
	case n >= p.limit:
		return gup.ErrUnmapped
	}
	return nil
}

func (p *pager) want(t testing.TB, want ...pageIn) {
	t.Helper()
	if !slices.Equal(p.calls, want) {
		t.Errorf("page-ins\n got %v\nwant %v", p.calls, want)
	}
	p.calls = nil
}

type delegate struct {
	asked []netlink.Fault
	err   error
	quiet bool
}

func (d *delegate) Ask(f netlink.Fault) error {
	if d.err != nil {
		return d.err
	}
	if !d.quiet {
		d.asked = append(d.asked, f)
	}
	return nil
}

// accesses formats a log in the notation of the tests.
func accesses(log []faulttest.Access) []string {
	var out []string
	for _, a := range log {
		op := "r"
		if a.Write {
			op = "w"
		}
		out = append(out, fmt.Sprintf("%s%d %v+%#x %#x", op, 8*a.Width, a.Window, a.Offset, a.Value))
	}
	return out
}

func wantLog(t testing.TB, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("register accesses\n got %q\nwant %q", got, want)
	}
}
