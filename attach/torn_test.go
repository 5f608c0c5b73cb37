package attach

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/exanet/pfd/device"
)

// TestDescriptorIsNotTorn reads a channel's descriptor at random moments while its process
// publishes one after the other: a copy with done = 0 is all of the newest. A copy with the
// addresses of the previous transfer would write where no write is expected, and report the new
// transfer complete.
func TestDescriptorIsNotTorn(t *testing.T) {
	p := testPages(t)
	p.SetDone(0, device.DoneCompleted, 0, 0)
	const rounds = 2000
	var taken atomic.Uint64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := uint64(1); i <= rounds; i++ {
			p.Publish(0, &device.Descriptor{
				Src: device.VA(i), Dst: device.VA(i), Notify: device.VA(i), First: i, Last: i, Size: uint32(i), DstPDID: device.PDID(i),
			})
			for taken.Load() != i {
				runtime.Gosched()
			}
		}
	}()
	for i := uint64(1); i <= rounds; {
		var d device.Descriptor
		p.Descriptor(0, &d)
		if d.Done != device.DoneInitialized {
			continue
		}
		if d.Src != device.VA(i) || d.Dst != device.VA(i) || d.Notify != device.VA(i) || d.First != i || d.Last != i || d.Size != uint32(i) || d.DstPDID != device.PDID(i) {
			t.Fatalf("a torn copy of descriptor %d: %+v", i, d)
		}
		p.SetDone(0, device.DoneCompleted, 0, 0)
		taken.Store(i)
		i++
	}
	<-done
}
