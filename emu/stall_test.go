package emu_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"golang.org/x/sys/unix"
)

// An access that stalls waits for its page: every byte arrives, no block is refused, and no
// retransmission is requested. The time-out of a block is so long that none is retransmitted.
func TestStall(t *testing.T) {
	for _, policy := range []fault.Policy{fault.PIO, fault.PI4, fault.PIA, fault.Adaptive} {
		for _, size := range []int{1, 4096, 16384, 1 << 20} {
			r := stalling(t, policy)
			src, dst := bytes.Repeat([]byte{0xa5, 1, 2, 3}, size/4+1)[:size], absent(t, size)
			sourceAbsent := absent(t, size)
			for i, d := range []device.Descriptor{
				{Src: va(src), Dst: va(dst), Size: uint32(size), DstNode: 1},
				{Src: va(sourceAbsent), Dst: va(dst), Size: uint32(size), DstNode: 1},
			} {
				if v := r.write(i, d); v != device.DoneCompleted {
					st, _ := r.sides[0].pages.Status(i)
					t.Fatalf("%v, %d bytes: done %d, status %d", policy, size, v, st)
				}
				if want := [][]byte{src, sourceAbsent}[i]; !bytes.Equal(want, dst) {
					t.Fatalf("%v, %d bytes: other bytes", policy, size)
				}
			}
			for n := range 2 {
				r.on(n, func() {
					s := r.drivers[n].Stats()
					if s.Total.Stalls == 0 || s.Total.RAPF != 0 || s.Total.Unresolvable != 0 || s.StuckFSR != 0 {
						t.Errorf("%v, %d bytes, node %d: %+v", policy, size, n, s)
					}
					if pushed := r.engine.Node(n).Count(device.FIFOPush); pushed != 0 {
						t.Errorf("%v, %d bytes, node %d: %d FIFO entries", policy, size, n, pushed)
					}
					if again := r.engine.Node(n).Count(device.Retransmits); again != 0 {
						t.Errorf("%v, %d bytes, node %d: %d blocks sent again", policy, size, n, again)
					}
				})
			}
		}
	}
}

// Memory that cannot be brought in ends the access, and the transfer fails as without a stall; then the
// domain continues. A domain that ends while its access waits becomes quiet.
func TestStallEnds(t *testing.T) {
	r := stalling(t, fault.PIO)
	src, dst := bytes.Repeat([]byte{7}, 8192), absent(t, 3*4096)
	if err := unix.Mprotect(dst[4096:8192], unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	if v := r.write(0, device.Descriptor{Src: va(src), Dst: va(dst), Size: 8192, DstNode: 1}); v != device.DoneFailed {
		t.Fatalf("into a page that may not be written: done %d", v)
	}
	if st, _ := r.sides[0].pages.Status(0); st != device.StatusDecode {
		t.Errorf("status %d", st)
	}
	if v := r.write(1, device.Descriptor{Src: va(src), Dst: va(dst[8192:]), Size: 4096, DstNode: 1}); v != device.DoneCompleted {
		t.Fatalf("the next transfer: done %d", v)
	}

	// The faults of node 1 are no longer served.
	r.on(1, func() { r.drivers[1].Remove(r.sides[1].domain.Slot) })
	quiet := make(chan struct{})
	r.ring(2, device.Descriptor{Src: va(src), Dst: va(absent(t, 4096)), Size: 4096, DstNode: 1})
	r.on(1, func() {
		if err := r.managers[1].Destroy(r.sides[1].domain.Slot, func() { close(quiet) }); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-quiet:
	case <-time.After(time.Minute):
		t.Fatal("the domain does not come to rest")
	}
}

func stalling(t testing.TB, policy fault.Policy) *rig {
	t.Helper()
	r := newRigOf(t, emu.Config{Nodes: 2, Stall: true}, policy)
	for n := range 2 {
		r.on(n, func() {
			for _, reg := range []uint32{device.PLTimeoutUS, device.PLGuardUS} {
				if err := r.engine.Bus(n).Window(device.PL).Write32(reg, 60_000_000); err != nil {
					t.Error(err)
				}
			}
		})
	}
	return r
}
