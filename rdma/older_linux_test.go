package rdma

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
)

// A pfd that does not read a userfaultfd's events refuses the share that announces one
// (docs/attach.md, SHARE). The library repeats it without one, and an munmap without Unshare does
// not block.
func TestShareWithAnOlderPFD(t *testing.T) {
	f, err := newFake()
	if err != nil {
		t.Fatal(err)
	}
	var asked, watched atomic.Int32
	f.caps = device.CapsSVA
	f.hold = func(ctx context.Context, c *attach.Conn) error {
		var buf [attach.MaxMessage]byte
		for {
			n, fds, err := c.Receive(ctx, buf[:])
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			s, err := attach.DecodeShare(buf[:n])
			switch {
			case err != nil:
				err = c.Refuse(attach.CodeUnknownType, 0, err.Error())
			case s.Watched:
				watched.Add(1)
				err = c.Refuse(attach.CodeProtocol, attach.TypeShare, "invalid value: flags 0x3")
			default:
				asked.Add(1)
				if len(fds) != 1 {
					t.Errorf("%d descriptors come with a share that nobody watches", len(fds))
				}
				done := attach.Shared{Product: attach.Product(), VA: s.VA, Size: s.Size, Answered: attach.TypeShare}
				err = c.Send(done.Append(nil))
			}
			fds.Close()
			if err != nil {
				return err
			}
		}
	}
	e := attachTo(t, startFake(t, f))
	const size = 2 * device.PageSize
	fd, err := MakeMemory(size, device.PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Share(VAOf(mem), size, fd, 0, true); err != nil {
		t.Fatal(err)
	}
	if asked.Load() != 1 {
		t.Errorf("shared %d times without a userfaultfd, want once", asked.Load())
	}
	if watched.Load() == 0 {
		t.Log("this kernel has no userfaultfd for a plain program: it was shared without one at once")
	}
	if err := unix.Munmap(mem); err != nil {
		t.Error(err)
	}
}
