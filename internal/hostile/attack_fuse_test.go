package hostile

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/rdma"
)

// hangInFUSE attaches, transfers into pages of a file (o.Path) whose reads never return, and
// detaches. The page-ins keep sleeping.
func hangInFUSE(ctx context.Context, o order, did func()) error {
	fd, err := unix.Open(o.Path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	slow, err := unix.Mmap(fd, 0, fuseSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	const part, parts = 64 << 10, 8
	src := make([]byte, part)
	cycles(ctx, int(o.Size), func() {}, func(round int64) error {
		e, err := attachBoth(ctx, o.Attach.Socket, fmt.Sprint("fuse", round))
		if err != nil {
			return err
		}
		defer e.Close()
		if err := e.write(ctx, src, slow, part, parts); err != nil {
			return err
		}
		did()                             // detaching takes long: the process's helper cannot end
		time.Sleep(20 * time.Millisecond) // until the page-ins sleep
		return nil
	})
	return nil
}

// write starts n transfers of size bytes each, from the start of src to successive parts of dst
// while they fit. It waits for none.
func (e ends) write(ctx context.Context, src, dst []byte, size, n int) error {
	remote, err := e.to.Export(dst)
	if err != nil {
		return err
	}
	for i := range n {
		_, err := e.from.Write(ctx, rdma.WriteRequest{SrcVA: rdma.VAOf(src), Size: uint64(size), Dst: remote, Offset: uint64(i*size) % uint64(len(dst))})
		if err != nil {
			return err
		}
	}
	return nil
}
