package hostile

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// Mappings of the punched file, which has holesSize: as many as processes may have.
const (
	holesProcesses = 16
	holesMappings  = 60_000
	holesSize      = 4 * device.PageSize
)

// makeHoles returns an attacker that punches holes into a file. The file is mapped so often
// that the kernel works on each hole for a second. The attacker shares the file with pfd and
// makes transfers in it, or with elsewhere shares another file, so that pfd does not use the
// punched one. With anew it also shares and unshares its file repeatedly.
func makeHoles(anew, elsewhere bool) attacker {
	return func(ctx context.Context, o order, did func()) error {
		e, err := persist(ctx, func() (ends, error) { return attachBoth(ctx, o.Attach.Socket, "holes") })
		if err != nil {
			return err
		}
		defer e.Close()
		var fds [2]int
		var files [2][]byte
		for i := range fds {
			if fds[i], err = unix.MemfdCreate("holes", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
				return err
			}
			err = unix.Ftruncate(fds[i], holesSize)
			if err == nil {
				_, err = unix.FcntlInt(uintptr(fds[i]), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
			}
			if err == nil {
				files[i], err = unix.Mmap(fds[i], 0, holesSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
			}
			if err != nil {
				return err
			}
		}
		shared, va, punched := fds[0], rdma.VAOf(files[0]), 0
		if elsewhere {
			punched = 1
		}
		err = errors.Join(e.from.Share(va, holesSize, shared, 0, true), e.to.Share(va, holesSize, shared, 0, true))
		if err != nil {
			return err
		}
		to, err := e.to.ExportVA(va+2*device.PageSize, device.PageSize)
		if err != nil {
			return err
		}
		if err := mapElsewhere(fds[punched], holesProcesses, holesMappings, holesSize, 0); err != nil {
			return err
		}
		var all sync.WaitGroup
		defer all.Wait()
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		all.Go(func() {
			for ctx.Err() == nil {
				x, err := e.from.Write(ctx, rdma.WriteRequest{Src: files[0][:device.PageSize], Dst: to})
				if err == nil {
					_ = x.Wait(ctx) // unsharing meanwhile is no error
				}
			}
		})
		punch := func() {
			for ctx.Err() == nil {
				clear(files[punched])
				if err := unix.Fallocate(fds[punched], unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, holesSize); err == nil && !anew {
					did()
				}
			}
		}
		if !anew {
			punch()
			return nil
		}
		all.Go(punch)
		for ctx.Err() == nil {
			if err := errors.Join(e.from.Unshare(va, holesSize), e.from.Share(va, holesSize, shared, 0, true)); err != nil {
				return fmt.Errorf("share again: %w", err)
			}
			did()
		}
		return nil
	}
}
