package hostile

import (
	"context"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// takeContexts starts blocks that fault at a target that never pages in, aborts their transfers
// and starts new ones: the receive contexts of the aborted ones stay open.
func takeContexts(ctx context.Context, o order, did func()) error {
	const size = 16 * device.BlockSize
	remote, err := persist(ctx, func() (rdma.Remote, error) {
		return silentTarget(o.Attach.Socket, "contexts", device.WriteChannels*size)
	})
	if err != nil {
		return err
	}
	src := make([]byte, size)
	eps := make([]*rdma.Endpoint, o.Size)
	for i := range eps {
		eps[i], err = persist(ctx, func() (*rdma.Endpoint, error) {
			return rdma.Attach(ctx, rdma.Options{Socket: o.Attach.Socket, Group: "contexts", Method: rdma.MethodTouch})
		})
		if err != nil {
			return err
		}
	}
	// The pause grows: on a busy machine few transfers of a round start while those of the
	// previous round end.
	for pause := 2 * attackPause; ctx.Err() == nil; pause = min(2*pause, 32*attackPause) {
		var running []*rdma.Transfer
		for _, ep := range eps {
			for ch := range uint64(device.WriteChannels) {
				short, cancel := context.WithTimeout(ctx, 10*attackPause)
				t, err := ep.Write(short, rdma.WriteRequest{Src: src, Dst: remote, Offset: ch * size})
				cancel()
				if err == nil {
					running = append(running, t)
				}
			}
		}
		time.Sleep(pause) // until their blocks have faulted
		for _, t := range running {
			if t.Abort() == nil {
				did()
			}
		}
	}
	return nil
}
