package mediate_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/device/queues"
	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/space/shadow"
	"github.com/exanet/pfd/space/shadow/shadowtest"
	"github.com/exanet/pfd/vfio/mediate"
	"github.com/exanet/pfd/vfio/user"
)

// pinning is a node whose mappings pin, as with the kernel's VFIO: mapped memory is locked in
// this process.
type pinning struct {
	mediate.Function
	pins *shadowtest.Pins
	node uint64 // in the addresses' top byte
}

func (p *pinning) Kind() shadow.Kind { return shadow.Pinned }

func (p *pinning) MapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error {
	if err := p.pins.Map(addr|p.node<<56, size, fd, offset); err != nil {
		return err
	}
	return p.Function.MapDMA(addr, size, fd, offset, rights)
}

func (p *pinning) UnmapDMA(addr, size uint64) error {
	if err := p.Function.UnmapDMA(addr, size); err != nil {
		return err
	}
	return p.pins.Unmap(addr|p.node<<56, size)
}

// pinned is a machine of two nodes that pin.
type pinned struct {
	*machine
	pins  *shadowtest.Pins
	bound uint64
	most  atomic.Uint64 // the most bytes locked at any check
}

func (p *pinned) MayPin() int64 { return int64(p.bound) }

// newPinned makes windows of window bytes, with the kernel's limit at their bound.
func newPinned(t testing.TB, window uint64, idle time.Duration) *pinned {
	t.Helper()
	p := &pinned{bound: 2 * shadow.Bound(window)}
	p.pins = shadowtest.New(t, p.bound)
	p.machine = newConnected(t, mediate.Config{Window: window, WindowIdle: idle}, func(node int, f mediate.Function) mediate.Function {
		return &pinning{f, p.pins, uint64(node)}
	})
	return p
}

// newConnected makes two nodes, each through wrap.
func newConnected(t testing.TB, cfg mediate.Config, wrap func(node int, f mediate.Function) mediate.Function) *machine {
	t.Helper()
	s, dir := startServer(t, false)
	for node := range 2 {
		connect := mediate.VFIOUser(serve.SocketPath(dir, node), user.Options{})
		cfg.Connect = append(cfg.Connect, func(ctx context.Context, vectors []int) (mediate.Function, error) {
			f, err := connect(ctx, vectors)
			if err != nil {
				return nil, err
			}
			return wrap(node, f), nil
		})
	}
	return &machine{Mediated: suite.Mediated{Machine: running(t, cfg)}, server: s}
}

// look compares the kernel's count with that of the nodes' memory.
func (p *pinned) look(t testing.TB) (kernel, ours uint64) {
	t.Helper()
	moving := uint64(0)
	kernel, err := p.pins.Locked(func() {
		for node := range 2 {
			mem, err := p.Memory(node)
			if err != nil {
				t.Error(err)
				return
			}
			s := mem.Stats()
			ours, moving = ours+s.Pinned, moving+s.Moving
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := max(kernel, ours) - min(kernel, ours); diff > moving || kernel > p.bound {
		t.Errorf("%d bytes are locked, bound %d; we say %d, %d being mapped or unmapped", kernel, p.bound, ours, moving)
	}
	p.most.Store(max(kernel, p.most.Load()))
	return kernel, ours
}

// TestThroughASmallWindow writes shared memory much larger than the window, from absent to absent
// pages: every byte is correct, and the pinned amount never exceeds the bound, which the kernel
// enforces. PFD_WINDOW_MIB sets the size in MiB.
func TestThroughASmallWindow(t *testing.T) {
	mib := 64
	if s := os.Getenv("PFD_WINDOW_MIB"); s != "" {
		var err error
		if mib, err = strconv.Atoi(s); err != nil || mib < 1 {
			t.Fatalf("PFD_WINDOW_MIB %q: want a number of MiB", s)
		}
	}
	if testing.Short() {
		mib = 8
	}
	p := newPinned(t, 1<<20, 100*time.Millisecond)
	if k, _ := p.look(t); k > 1<<20 {
		t.Errorf("two idle nodes pin %d bytes, want 1 MiB at most", k)
	}
	r := suite.NewRig(t, p, pagein.PIA, false)
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			select {
			case <-stop:
				return
			default:
				p.look(t)
			}
		}
	}()
	src, dst := r.Map(t, mib<<20), r.Map(t, mib<<20)
	const piece = 1 << 20
	rng := rand.NewChaCha8([32]byte{1})
	for at := 0; at < len(src); at += piece {
		_, _ = rng.Read(src[at : at+piece])
		d := device.Descriptor{Src: suite.VA(src[at:]), Dst: suite.VA(dst[at:]), Size: piece, DstNode: 1}
		if done, status := r.Write(at/piece%device.WriteChannels, d); done != device.DoneCompleted {
			t.Fatalf("at %d MiB: done %d, status %d", at>>20, done, status)
		}
	}
	if !bytes.Equal(src, dst) {
		t.Error("other bytes than the source's")
	}
	close(stop)
	<-over
	// The memory is unused: only the roots of the tables stay pinned.
	want := uint64(2 * (device.Slots*device.PageSize + queues.MemorySize))
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		k, ours := p.look(t)
		if k == want && ours == want {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes stay pinned, want %d", k, want)
		}
	}
	t.Logf("%d MiB, most pinned %d kB of %d kB", mib, p.most.Load()>>10, p.bound>>10)
}

// lying is a node whose memory loses pages that it was told to map.
type lying struct {
	mediate.Function
	lose *atomic.Int32 // the next maps of one page to lose
}

func (l *lying) MapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error {
	if size == device.PageSize && l.lose.Add(-1) >= 0 {
		return nil
	}
	return l.Function.MapDMA(addr, size, fd, offset, rights)
}

// TestRefusedWhereEntered: an access that the IOMMU refuses, to a page that is entered, is a
// mismatch. The page is mapped once more; if that does not help the transfer ends with status 2.
func TestRefusedWhereEntered(t *testing.T) {
	for _, lost := range []int32{1, 1000} {
		lose := &atomic.Int32{}
		m := newConnected(t, mediate.Config{}, func(_ int, f mediate.Function) mediate.Function { return &lying{f, lose} })
		r := suite.NewRig(t, m, pagein.PIO, false)
		src, dst := r.Map(t, device.PageSize), r.Map(t, device.PageSize)
		src[0] = 1
		r.Present(t, src)
		lose.Store(lost)
		done, status := r.Write(0, device.Descriptor{Src: suite.VA(src), Dst: suite.VA(dst), Size: device.PageSize, DstNode: 1})
		mem, err := m.Memory(1)
		if err != nil {
			t.Fatal(err)
		}
		if n := mem.Stats().Remaps; n != 1 {
			t.Errorf("%d maps lost: %d mismatches, want 1", lost, n)
		}
		if lost == 1 && (done != device.DoneCompleted || dst[0] != 1) || lost > 1 && (done != device.DoneFailed || status != device.StatusDecode) {
			t.Errorf("%d maps lost: done %d, status %d", lost, done, status)
		}
	}
}
