package mediate_test

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/vfio/mediate"
)

// side is a process's pages on node 0 of a machine without a suite's rig.
type side struct {
	*machine
	pages   *attach.Memory
	domain  *domain.Domain
	manager *domain.Manager
	asked   chan struct{} // receives when a page-in begins
	let     chan struct{} // lets it continue
}

// newSide attaches pages to a node whose page-ins wait for side.let.
func newSide(t *testing.T) *side {
	t.Helper()
	s := &side{machine: newMachine(t, false, true), asked: make(chan struct{}, 64), let: make(chan struct{})}
	dir, err := domain.NewDirectory(domain.DirectoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	bus := s.Bus(0)
	manager, err := domain.NewManager(bus, 0, dir, domain.WithTables(func(slot int) uint64 { return s.Tables(0, slot) }))
	if err != nil {
		t.Fatal(err)
	}
	s.manager = manager
	if s.pages, err = attach.NewMemory(); err != nil {
		t.Fatal(err)
	}
	d := fault.New(fault.Config{Bus: bus, Memory: s.Space(0), Now: s.Now})
	served := make(chan error, 1)
	go func() { served <- bus.Serve(t.Context(), d) }()
	s.On(0, func() {
		if err = manager.Init(); err == nil {
			s.domain, err = manager.Create(domain.Request{})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	s.On(0, func() {
		a := &mediate.Attachment{Pages: s.pages.Pages, Wake: s.pages.WakeFD(), Space: space.NewDirect(nil, s)}
		err = s.Machine.Attach(0, s.domain.Slot, a)
	})
	if err != nil {
		t.Fatal(err)
	}
	s.On(0, func() { err = d.Add(fault.Target{Slot: s.domain.Slot, PDID: s.domain.PDID}) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(s.let)
		<-served
		s.Detach(0, s.domain.Slot)
		_ = s.pages.Close()
	})
	return s
}

// PageIn waits for let; no page is ever resident.
func (s *side) PageIn(device.VA, int, bool) gup.Result {
	s.asked <- struct{}{}
	<-s.let
	return gup.Result{Err: gup.ErrUnmapped}
}

// kick wakes the machine after a publication.
func (s *side) kick() {
	if s.pages.Kick() {
		// The eventfd is not full: no wake-up is lost.
		_, _ = unix.Write(s.pages.WakeFD(), binary.NativeEndian.AppendUint64(nil, 1))
	}
}

// final waits until a channel's transfer is final.
func (s *side) final(t *testing.T, ch int) (done uint32, status uint8) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Microsecond) {
		done = s.pages.Done(ch)
		if status, _ = s.pages.Status(ch); done == device.DoneCompleted || done == device.DoneFailed {
			return done, status
		}
		if time.Now().After(deadline) {
			t.Fatalf("channel %d does not end: done %d", ch, done)
		}
	}
}

// TestAbort ends a transfer that waits for a page, by its abort bit and another doorbell, as the
// library does.
func TestAbort(t *testing.T) {
	s := newSide(t)
	s.pages.Publish(5, &device.Descriptor{Src: 0x10000, Dst: 0x20000, Size: 4096})
	s.pages.Ring(5)
	s.kick()
	<-s.asked
	for s.pages.Done(5) != device.DoneOngoing {
		time.Sleep(50 * time.Microsecond) // reported within watchPause
	}
	s.pages.AskAbort(5)
	s.pages.Ring(5)
	s.kick()
	if done, status := s.final(t, 5); done != device.DoneFailed || status != device.StatusAborted {
		t.Errorf("done %d, status %d; want 3 with status 9", done, status)
	}
	// A transfer that has not begun ends as well.
	s.pages.Publish(5, &device.Descriptor{Src: 0x10000, Dst: 0x20000, Size: 4096})
	s.pages.AskAbort(5)
	s.pages.Ring(5)
	s.kick()
	if done, status := s.final(t, 5); done != device.DoneFailed || status != device.StatusAborted {
		t.Errorf("aborted before it began: done %d, status %d; want 3 with status 9", done, status)
	}
	// The channel can be used again. The transfer starts once, although a word and a message
	// announce it.
	s.pages.Publish(5, &device.Descriptor{Size: 0})
	word := mailbox.Doorbell{PDID: s.domain.PDID, Channel: uint16(s.domain.Slot*device.ChannelsPerSlot + 5)}.Encode()
	s.pages.Ring(5)
	s.pages.Send(0, 0, device.MailboxRequest, word)
	s.pages.Send(1, 0, device.MailboxRequest, word)
	s.kick()
	if done, status := s.final(t, 5); done != device.DoneFailed || status != device.StatusDecode {
		t.Errorf("a bad descriptor: done %d, status %d", done, status)
	}
}

// TestHostilePages: a process that writes nonsense into its pages receives an error or is
// counted, and affects no one else.
func TestHostilePages(t *testing.T) {
	s := newSide(t)
	other := uint16((s.domain.Slot + 1) * device.ChannelsPerSlot)
	send := func(words ...uint64) uint64 {
		t.Helper()
		if !s.pages.Send(0, 0, device.MailboxRequest, words...) {
			t.Fatal("the channel is busy")
		}
		s.kick()
		for s.pages.SendStatus(0) == device.PktzBusy {
			time.Sleep(20 * time.Microsecond)
		}
		return s.pages.SendStatus(0)
	}
	count := func(c device.Counter) (v uint64) {
		s.On(0, func() { v, _ = s.Bus(0).Window(device.PL).Read64(c.Offset()) })
		return v
	}
	// Doorbells of the firmware's channels, of channels that there are not, and of
	// another slot.
	denied := count(device.DoorbellDenied)
	for _, ch := range []int{32, 63} {
		s.pages.Ring(ch)
		s.kick()
		s.On(0, func() {})
		s.On(0, func() {}) // after the first call the pages have been read
	}
	send(mailbox.Doorbell{PDID: s.domain.PDID, Channel: other}.Encode())
	if n := count(device.DoorbellDenied) - denied; n == 0 || n > 3 {
		t.Errorf("%d doorbells denied", n)
	}
	// A message to a mailbox that processes may not write.
	if st := func() uint64 {
		if !s.pages.Send(0, 0, device.MailboxAck, 0) {
			t.Fatal("the channel is busy")
		}
		s.kick()
		for s.pages.SendStatus(0) == device.PktzBusy {
			time.Sleep(20 * time.Microsecond)
		}
		return s.pages.SendStatus(0)
	}(); st != device.PktzRefused {
		t.Errorf("a forged acknowledgement: status %d", st)
	}
	// A doorbell for a descriptor that is not ready starts nothing.
	s.pages.Ring(7)
	s.kick()
	s.On(0, func() {})
	if d := s.pages.Done(7); d != device.DoneReset {
		t.Errorf("done %d", d)
	}
}
