package hostile

import (
	"context"
	"sync"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// takeIDs keeps all write channels of its slots busy with transfers from memory whose faults
// the process must serve itself and never does. Each of their paused blocks holds a transaction
// id.
func takeIDs(ctx context.Context, o order, did func()) error {
	const size = 1 << 20
	fd, err := newUserfaultfd() // never read: a thread that faults sleeps
	if err != nil {
		return err
	}
	src, err := registered(fd, device.WriteChannels*size)
	if err != nil {
		return err
	}
	// The first blocks of each transfer are present: the blocks after them are sent together
	// and fault together.
	for i := range device.WriteChannels {
		if err := zeroPages(fd, uintptr(rdma.VAOf(src))+uintptr(i)*size, 2*device.BlockSize); err != nil {
			return err
		}
	}
	attach := func(node device.NodeID) (*rdma.Endpoint, error) {
		return persist(ctx, func() (*rdma.Endpoint, error) {
			return rdma.Attach(ctx, rdma.Options{Socket: o.Attach.Socket, Node: node, Group: "ids", AcceptGroup: true, Method: rdma.MethodTouch})
		})
	}
	to, err := attach(1)
	if err != nil {
		return err
	}
	defer to.Close()
	remote, err := to.Export(make([]byte, size))
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for range o.Size {
		ep, err := attach(0)
		if err != nil {
			return err
		}
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				from := rdma.VAOf(src) + device.VA(i%device.WriteChannels*size)
				// Write waits for a free channel.
				if _, err := ep.Write(ctx, rdma.WriteRequest{SrcVA: from, Size: size, Dst: remote}); err != nil {
					time.Sleep(attackPause)
					continue
				}
				did()
			}
		})
	}
	all.Wait()
	return nil
}
