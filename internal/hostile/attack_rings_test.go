package hostile

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/rdma"
)

// attackByRings makes and closes rings as fast as it can. Others, which it never reads, wake it at each of its
// transfers.
func attackByRings(ctx context.Context, o order, did func()) error {
	e, err := persist(ctx, func() (ends, error) { return attachBoth(ctx, o.Attach.Socket, "rings") })
	if err != nil {
		return err
	}
	defer e.Close()
	b, err := e.to.Alloc(1 << 16)
	if err != nil {
		return err
	}
	remote, err := e.to.Export(b.Bytes())
	if err != nil {
		return err
	}
	src, err := e.from.Alloc(4096)
	if err != nil {
		return err
	}
	unread, err := e.to.Ring(nil)
	if err != nil {
		return err
	}
	defer unread.Close()
	cycles(ctx, 4, did, func(round int64) error {
		offset := 4096 + uint64(round%512)*64
		words, err := rdma.Word(b.Bytes(), offset)
		if err != nil {
			return err
		}
		r, err := e.to.Ring([]uint64{*words}) // of memory that no transfer reaches
		if err != nil {
			return err
		}
		t, err := e.from.Write(ctx, rdma.WriteRequest{
			Src: src.Bytes()[:64], Dst: remote, Offset: offset, Notify: &rdma.Notification{Offset: offset, First: uint64(round), Last: uint64(round)}, Wait: true,
		})
		if err == nil {
			err = t.Wait(ctx)
		}
		if round%64 == 0 { // pages of the words, and perhaps more
			_ = unix.Madvise(b.Bytes(), unix.MADV_REMOVE)
		}
		return errors.Join(err, r.Close())
	})
	return nil
}
