package emu_test

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space"
	"golang.org/x/sys/unix"
)

// A process ends while a block to it is paused, and the next process of its group attaches in the same
// slot, with the same PDID. The guard retransmits the block; not a byte may arrive, and the transfer
// fails with status 5.
func TestPausedBlockMeetsTheNextProcess(t *testing.T) {
	r := newRig(t, fault.PIO)
	for n := range 2 {
		r.on(n, func() { _ = r.engine.Bus(n).Window(device.PL).Write32(device.PLGuardUS, 2000) })
	}
	src, dst := absent(t, 4096), absent(t, 4096)
	for i := range src {
		src[i] = byte(i*7 + 1)
	}
	old := r.sides[1]
	r.on(1, func() { r.drivers[1].Remove(old.domain.Slot) }) // without a driver the block waits
	d := device.Descriptor{Src: va(src), Dst: va(dst), Size: 4096, DstNode: 1, DstGeneration: old.domain.Generation}
	p := r.sides[0].pages
	p.Publish(0, &d)
	p.Ring(0)
	if p.Kick() {
		_, _ = unix.Write(r.sides[0].mem.WakeFD(), []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	patience := time.Now().Add(2 * time.Minute)
	for paused := uint8(0); paused == 0; _, paused = p.Status(0) {
		if time.Now().After(patience) {
			t.Fatal("the block is not paused")
		}
	}
	quiet := make(chan struct{})
	r.on(1, func() {
		if err := r.managers[1].Destroy(old.domain.Slot, func() { r.engine.Detach(1, old.domain.Slot); close(quiet) }); err != nil {
			t.Error(err)
			close(quiet)
		}
	})
	<-quiet
	// The next process has memory of its own there, and it is resident.
	for i := range dst {
		dst[i] = 0x5a
	}
	next, err := attach.NewMemory()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { r.on(1, func() { r.engine.Detach(1, old.domain.Slot) }); _ = next.Close() }()
	r.on(1, func() {
		got, err := r.managers[1].Create(domain.Request{UID: uint32(os.Getuid()), PID: os.Getpid()})
		if err != nil {
			t.Error(err)
			return
		}
		if got.Slot != old.domain.Slot || got.PDID != old.domain.PDID || got.Generation == old.domain.Generation {
			t.Errorf("the next domain: %+v, after %+v", got, old.domain)
		}
		if err := r.engine.Attach(1, got.Slot, &emu.Attachment{Pages: next.Pages, Wake: next.WakeFD(), Space: space.NewDirect(r.process, gup.New(r.process))}); err != nil {
			t.Error(err)
		}
	})
	done := uint32(0)
	for done != device.DoneCompleted && done != device.DoneFailed {
		if done = p.Done(0); time.Now().After(patience) {
			t.Fatal("the transfer does not end")
		}
	}
	if status, _ := p.Status(0); done != device.DoneFailed || status != device.StatusDomain {
		t.Errorf("done %d, status %d", done, status)
	}
	if n := len(dst) - bytes.Count(dst, []byte{0x5a}); n != 0 {
		t.Errorf("%d bytes of the transfer are in the next process's memory", n)
	}
}

// A process detaches with a transfer in progress, and the next one has its slot before the engine has
// published the transfer's end: what the next process has published stays unchanged.
func TestTransferOfAProcessThatLeft(t *testing.T) {
	r := newRig(t, fault.PIO)
	src, dst := absent(t, 4096), absent(t, 4096)
	old := r.sides[0]
	r.on(1, func() { r.drivers[1].Remove(r.sides[1].domain.Slot) }) // without a driver the block waits
	d := device.Descriptor{Src: va(src), Dst: va(dst), Size: 4096, DstNode: 1, DstGeneration: r.sides[1].domain.Generation}
	r.ring(0, d)
	patience := time.Now().Add(2 * time.Minute)
	for paused := uint8(0); paused == 0; _, paused = old.pages.Status(0) {
		if time.Now().After(patience) {
			t.Fatal("the block is not paused")
		}
	}
	next, err := attach.NewMemory()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { r.on(0, func() { r.engine.Detach(0, old.domain.Slot) }); _ = next.Close() }()
	attached := make(chan struct{})
	r.on(0, func() {
		if err := r.managers[0].Destroy(old.domain.Slot, func() {
			r.engine.Detach(0, old.domain.Slot)
			if err := r.engine.Attach(0, old.domain.Slot, &emu.Attachment{Pages: next.Pages, Wake: next.WakeFD(), Space: space.NewDirect(r.process, gup.New(r.process))}); err != nil {
				t.Error(err)
			}
			next.Publish(0, &d)
			close(attached)
		}); err != nil {
			t.Error(err)
		}
	})
	<-attached
	time.Sleep(10 * time.Millisecond)
	if done := next.Done(0); done != device.DoneInitialized {
		status, _ := next.Status(0)
		t.Errorf("the next process's transfer is done %d with status %d before it began", done, status)
	}
}
