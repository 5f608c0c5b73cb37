package mediate_test

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
)

// A message for a process carries its domain's generation: any other generation is refused.
func TestMessageToAProcess(t *testing.T) {
	s := newSide(t)
	box := uint8(device.MailboxProcess + s.domain.Slot)
	for g, want := range map[device.Generation]uint64{s.domain.Generation: device.PktzFree, s.domain.Generation + 1: device.PktzRefused} {
		for _, w := range []struct {
			at uint32
			v  uint64
		}{
			{device.PktzDestination, packetizer.Destination(0, box, g)}, {device.PktzPayload, 42},
			{device.PktzStatus, device.PktzBusy}, {device.PktzSend, 1},
		} {
			if _, err := unix.Pwrite(s.pages.FD(), binary.NativeEndian.AppendUint64(nil, w.v), int64(attach.PktzPage+w.at)); err != nil {
				t.Fatal(err)
			}
		}
		s.kick()
		for s.pages.SendStatus(0) == device.PktzBusy {
			time.Sleep(20 * time.Microsecond)
		}
		if v := s.pages.SendStatus(0); v != want {
			t.Errorf("generation %#x of %#x: status %d, want %d", g, s.domain.Generation, v, want)
		}
	}
}

// Messages between processes await no register of the device, unless they have more words than an event.
// Each arrives once, in its order, also at a process that reads late.
func TestMessagesByQueues(t *testing.T) {
	s := newSide(t)
	to := packetizer.Destination(0, uint8(device.MailboxProcess+s.domain.Slot), s.domain.Generation)
	send := func(first uint64, count int) {
		for !s.pages.SendTo(0, to, 7, []uint64{first << 24, 2, 3, 4, 5, 6, 7, 8}[:count]) {
			time.Sleep(20 * time.Microsecond)
		}
		s.kick()
	}
	take := func(first uint64, count int) {
		t.Helper()
		var m attach.Mail
		for ok, full := false, false; !ok; {
			if ok, full = s.pages.TakeMail(&m); full {
				s.kick()
			}
			if !ok {
				time.Sleep(20 * time.Microsecond)
			}
		}
		want := [8]uint64{first << 24, 2, 3, 4, 5, 6, 7, 8}
		clear(want[count:])
		if m.Words[0] &^= mailbox.WiredBits; m.Words != want || mailbox.DecodeSource(m.Source).Words != count {
			t.Fatalf("%x, want %x", m.Words, want)
		}
	}
	send(1, 1)
	take(1, 1)
	_, before := s.requests(0)
	for i := range uint64(50) {
		send(i, 1+int(i)%device.EntryWords)
		take(i, 1+int(i)%device.EntryWords)
	}
	if _, awaited := s.requests(0); awaited != before {
		t.Errorf("50 messages awaited %d answers of the device", awaited-before)
	}
	for _, count := range []int{7, 8} {
		send(uint64(count), count)
		take(uint64(count), count)
	}
	// As many as a mailbox takes: more than the ring does, and some are long.
	const many = device.MailboxDepth
	for round := range uint64(4) {
		for i := range uint64(many) {
			send(round<<32|i, 1+int(i*round)%8)
		}
		for i := range uint64(many) {
			take(round<<32|i, 1+int(i*round)%8)
		}
	}
}

// A memory window is opened and withdrawn with one answer of the device for each: that its registers have
// arrived, and that nothing is written any more. Messages of a slot with windows await none.
func TestWindowsByQueues(t *testing.T) {
	s := newSide(t)
	w := device.MemoryWindow{VA: 0x10003, Bytes: 5000, Peer: 77, Rights: device.AllRights}
	slot, closed := s.domain.Slot, make(chan struct{}, 1)
	on := func(f func() error) {
		t.Helper()
		var err error
		if s.On(0, func() { err = f() }); err != nil {
			t.Fatal(err)
		}
	}
	const many = device.WindowsPerSlot
	_, before := s.requests(0)
	for range many {
		on(func() error { return s.manager.Window(slot, w) })
	}
	_, opened := s.requests(0)
	if opened-before > many {
		t.Errorf("%d windows awaited %d answers of the device", many, opened-before)
	}
	to := packetizer.Destination(0, uint8(device.MailboxProcess+slot), s.domain.Generation)
	for i := range uint64(20) {
		for !s.pages.SendTo(0, to, 7, []uint64{i << 24}) {
			time.Sleep(20 * time.Microsecond)
		}
		s.kick()
		for m := (attach.Mail{}); ; time.Sleep(20 * time.Microsecond) {
			if ok, _ := s.pages.TakeMail(&m); ok {
				break
			}
		}
	}
	if _, sent := s.requests(0); sent != opened {
		t.Errorf("20 messages awaited %d answers of the device", sent-opened)
	}
	for range many {
		on(func() error { return s.manager.CloseWindow(slot, w, func() { closed <- struct{}{} }) })
		<-closed
	}
	if _, n := s.requests(0); n-opened > many {
		t.Errorf("%d withdrawals awaited %d answers of the device", many, n-opened)
	}
}
