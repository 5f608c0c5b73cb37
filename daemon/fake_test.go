package daemon

import (
	"context"
	"errors"
	"sync"

	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault/faulttest"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/space"
)

// fake is a Machine of registers (faulttest) with one owning goroutine.
type fake struct {
	nodes []*fakeNode

	mu     sync.Mutex
	posts  []func()
	wake   chan struct{}
	broken chan error // makes Run fail

	// Owned by the owner.
	attached     map[[2]int]*session.Attachment
	log          []string // attach and detach, in order
	refuse       error    // answer of Attach
	transactions []r5.TransactionInfo
}

type fakeNode struct {
	ended tally.Node
	*faulttest.Node
	f       *fake
	handler device.Handler
}

func newFake(nodes int) *fake {
	f := &fake{
		wake: make(chan struct{}, 1), broken: make(chan error, 1),
		attached: map[[2]int]*session.Attachment{},
	}
	for i := range nodes {
		n := &fakeNode{Node: faulttest.New(), f: f}
		n.Set(device.PL, device.PLNodeID, uint32(i))
		n.resetChannels()
		f.nodes = append(f.nodes, n)
	}
	return f
}

func (f *fake) Nodes() int              { return len(f.nodes) }
func (f *fake) Bus(node int) device.Bus { return f.nodes[node] }

func (f *fake) Space(node int) space.Machine { return f.nodes[node].Node }

// pager is a Space as the nodes page in.
type pager struct{ space.Space }

func (p pager) PageIn(va device.VA, pages int, write bool) gup.Result {
	op := space.Op{Kind: space.PageIn, VA: va, Pages: pages, Write: write}
	space.Do(p.Space, &op)
	return op.Paged
}

func (f *fake) Features() session.Features {
	return session.Features{
		Transfers:    func(node int) *tally.Node { return &f.nodes[node].ended },
		Transactions: func(int) ([]r5.TransactionInfo, int64) { return f.transactions, 5e9 },
	}
}

// setChannel makes a channel of a node look used.
func (n *fakeNode) setChannel(slot, ch int, d device.Descriptor, s device.ChannelState) {
	for i, w := range d.Words() {
		n.Set64(device.BTCM, uint32(device.BTCMDescriptors+device.PageSize*slot+device.DescriptorSize*ch+8*i), w)
	}
	for i, w := range s.Words() {
		n.Set64(device.PL, device.PeekChannel(slot, ch)+8*uint32(i), w)
	}
}

// setFIFO sets an entry of RXFIFO's peek window.
func (n *fakeNode) setFIFO(i int, e device.FaultEntry, ext uint32) {
	at := device.PeekEntry(false, i)
	for k, w := range e.Words() {
		n.Set(device.PL, at+4*uint32(k), w)
	}
	n.Set(device.PL, at+device.PeekEXT, ext)
}

// resetChannels makes all channels look never used.
func (n *fakeNode) resetChannels() {
	done, _, _ := device.Lookup(device.BTCM, device.BTCMDescriptors+device.DescDone)
	for i := range device.Channels {
		n.setChannel(i/device.ChannelsPerSlot, i%device.ChannelsPerSlot, device.Descriptor{Done: uint32(done.ResetAt(i))}, device.ChannelState{})
	}
}

func (f *fake) Attach(node, slot int, a *session.Attachment) error {
	if f.refuse != nil {
		return f.refuse
	}
	f.attached[[2]int{node, slot}] = a
	f.nodes[node].Pagers[slot] = pager{a.Space}
	f.log = append(f.log, "attach")
	return nil
}

func (f *fake) Detach(node, slot int) {
	delete(f.attached, [2]int{node, slot})
	f.log = append(f.log, "detach")
}

// Run is the owner: it runs what was posted until ctx ends.
func (f *fake) Run(ctx context.Context) error {
	for {
		f.mu.Lock()
		posts := f.posts
		f.posts = nil
		f.mu.Unlock()
		for _, p := range posts {
			p()
			for _, n := range f.nodes {
				n.Node.Handler = n.handler
				n.Run() // vectors and calls that it brought
			}
		}
		if len(posts) > 0 {
			continue
		}
		select {
		case <-f.wake:
		case err := <-f.broken:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

func (f *fake) post(p func()) {
	f.mu.Lock()
	f.posts = append(f.posts, p)
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// do runs p on the owner and waits for it.
func (f *fake) do(p func()) {
	done := make(chan struct{})
	f.post(func() { p(); close(done) })
	<-done
}

// Post implements device.Bus; the embedded node's is for one goroutine only.
func (n *fakeNode) Post(p func()) { n.f.post(p) }

// Serve implements device.Bus.
func (n *fakeNode) Serve(ctx context.Context, h device.Handler) error {
	n.f.post(func() { n.handler = h })
	<-ctx.Done()
	return nil
}

var errFake = errors.New("the fake device broke")

// faultAccess describes an access to a register.
type faultAccess = faulttest.Access
