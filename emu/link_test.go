package emu_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/soc/link"
)

// Each direction of a link has its delay: a write has arrived after one, and is done after two.
func TestLinkDelay(t *testing.T) {
	const delay = 3 * time.Millisecond
	r := newRigOf(t, emu.Config{Nodes: 2, Link: link.Options{Delay: delay}}, fault.PIO)
	src := bytes.Repeat([]byte{0xa5, 1, 2, 3}, 1024)
	for range 3 {
		dst := absent(t, len(src))
		start := time.Now()
		if v := r.write(0, device.Descriptor{Src: va(src), Dst: va(dst), Size: uint32(len(src)), DstNode: 1}); v != device.DoneCompleted || !bytes.Equal(src, dst) {
			t.Fatalf("done %d", v)
		}
		// The block, the answer that it is paused, the request for it, its retransmission, and the
		// acknowledgement.
		if d := time.Since(start); d < 4*delay {
			t.Errorf("took %v over a link of %v", d, delay)
		}
		start = time.Now()
		if r.write(1, device.Descriptor{Src: va(src), Dst: va(dst), Size: uint32(len(src)), DstNode: 1}); time.Since(start) < 2*delay {
			t.Errorf("present: took %v over a link of %v", time.Since(start), delay)
		}
	}
}

// All bytes arrive, whatever frames a link loses.
func TestLinkLoss(t *testing.T) {
	r := newRigOf(t, emu.Config{Nodes: 2, Link: link.Options{Delay: time.Microsecond, Loss: 0.1, Seed: 7}}, fault.PIA)
	for n := range 2 {
		r.on(n, func() {
			for _, reg := range []uint32{device.PLTimeoutUS, device.PLGuardUS} {
				if err := r.engine.Bus(n).Window(device.PL).Write32(reg, 2000); err != nil {
					t.Error(err)
				}
			}
		})
	}
	chance := rand.New(rand.NewPCG(1, 1))
	for i := range 20 {
		size := 1 + chance.IntN(256<<10)
		src, dst := make([]byte, size), absent(t, size)
		for i := range src {
			src[i] = byte(chance.Uint32())
		}
		if v := r.write(i%8, device.Descriptor{Src: va(src), Dst: va(dst), Size: uint32(size), DstNode: 1}); v != device.DoneCompleted || !bytes.Equal(src, dst) {
			st, _ := r.sides[0].pages.Status(i % 8)
			t.Fatalf("transfer %d of %d bytes: done %d, status %d", i, size, v, st)
		}
	}
	r.on(0, func() {
		if again := r.engine.Node(0).Count(device.Retransmits); again == 0 {
			t.Error("no block was sent again")
		}
	})
}

func TestLinkOptions(t *testing.T) {
	_, err := emu.New(emu.Config{Nodes: 2, Link: link.Options{Loss: 2}})
	if !errors.Is(err, emu.ErrConfig) || !errors.Is(err, link.ErrOption) {
		t.Errorf("%v", err)
	}
}
