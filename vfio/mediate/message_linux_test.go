package mediate_test

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
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
