package hostile

import (
	"context"
	"fmt"

	"github.com/exanet/pfd/rdma"
)

// attachAndLeave attaches, makes one transfer and detaches, repeatedly.
func attachAndLeave(ctx context.Context, o order, did func()) error {
	cycles(ctx, int(o.Size), did, func(round int64) error {
		e, err := attachBoth(ctx, o.Attach.Socket, fmt.Sprint("cycle", round))
		if err != nil {
			return err
		}
		defer e.Close()
		remote, err := e.to.Export(make([]byte, 4096))
		if err != nil {
			return err
		}
		t, err := e.from.Write(ctx, rdma.WriteRequest{Src: make([]byte, 4096), Dst: remote})
		if err != nil {
			return err
		}
		return t.Wait(ctx)
	})
	return nil
}
