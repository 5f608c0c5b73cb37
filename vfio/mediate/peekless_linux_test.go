package mediate_test

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/vfio/mediate"
	"github.com/exanet/pfd/vfio/user"
)

// peekless is a node without peek windows: it does not tell into whose memory words were written.
type peekless struct{ mediate.Function }

func (f peekless) Read(region int, offset uint64, size int) (uint64, error) {
	v, err := f.Function.Read(region, offset, size)
	if region == int(device.PL) && offset == device.PLCaps {
		v &^= device.CapsPeek
	}
	return v, err
}

// belled is a machine whose processes have rings.
type belled struct {
	*machine
	bells [2]attach.Bells
}

func (b *belled) Attach(node, slot int, pages *attach.Pages, wake int, _ *proc.Process) (err error) {
	b.On(node, func() {
		err = b.Machine.Attach(node, slot, &mediate.Attachment{Pages: pages, Wake: wake, Bells: &b.bells[node]})
	})
	return err
}

// Completion words wake the ring that watches them, too, if the device tells of them by a vector alone.
func TestRingsWithoutPeek(t *testing.T) {
	s, dir := startServer(t, false)
	cfg := mediate.Config{Registers: true}
	for node := range 2 {
		connect := mediate.VFIOUser(serve.SocketPath(dir, node), user.Options{})
		cfg.Connect = append(cfg.Connect, func(ctx context.Context, vectors []int) (mediate.Function, error) {
			f, err := connect(ctx, vectors)
			return peekless{f}, err
		})
	}
	m := &belled{machine: &machine{Mediated: suite.Mediated{Machine: running(t, cfg)}, server: s}}
	r := suite.NewRig(t, m, fault.Policy(0), false)
	src, dst := r.Map(t, device.PageSize), r.Map(t, device.PageSize)
	r.Present(t, src)
	r.Present(t, dst)
	words := suite.VA(dst) + 64
	bell, fd, err := attach.NewBell(&attach.Ring{VA: words, Size: 16}, nil, func(f func()) { go f() })
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	m.On(1, func() { m.bells[1].Add(bell) })
	defer m.On(1, func() { m.bells[1].Close() })
	for n := range uint64(5) {
		if done, status := r.Write(0, device.Descriptor{Src: suite.VA(src), Dst: suite.VA(dst) + 128, Size: 64, DstNode: 1, Notify: words, First: n, Last: n}); done != device.DoneCompleted {
			t.Fatalf("done %d, status %d", done, status)
		}
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if k, err := unix.Poll(p, 10_000); k != 1 {
			t.Fatalf("words %d wake nobody: %v", n, err)
		}
		var b [8]byte
		for k := 1; k > 0; k, err = unix.Read(fd, b[:]) {
			if err != nil {
				break
			}
		}
	}
}
