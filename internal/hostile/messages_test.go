package hostile

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/queues"
	"github.com/exanet/pfd/packetizer"
)

// A process floods another with messages that nobody reads, and reads none of the refusals: others
// keep their share, and both processes can be used afterwards.
func TestMessageFlood(t *testing.T) { onEach(t, floodMessages) }

func floodMessages(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	for node := range device.NodeID(2) {
		liar, idle := w.raw(attach.Hello{Group: "flood"}), w.raw(attach.Hello{Group: "flood", Node: node, AcceptGroup: true})
		to := packetizer.Destination(node, idle.Interface, idle.Generation)
		var sent atomic.Int64
		var stop atomic.Bool
		var flood sync.WaitGroup
		flood.Go(func() {
			for !stop.Load() {
				for c := range device.PktzChannels {
					if liar.SendTo(c, to, uint16(sent.Load()), []uint64{0, 1, 2, 3, 4, 5, 6, 7}) {
						sent.Add(1)
					}
				}
				liar.kick()
			}
		})
		b.some()
		w.until("messages are sent", func() bool { return sent.Load() > 1000 })
		b.some()
		stop.Store(true)
		flood.Wait()
		w.until("the last message is taken", func() bool {
			for c := range device.PktzChannels {
				if liar.SendStatus(c) == device.PktzBusy {
					return false
				}
			}
			return true
		})
		for _, r := range []*raw{idle, liar} { // both read the messages that wait
			var m attach.Mail
			n := 0
			w.until("the mailbox is empty", func() bool {
				ok, full := r.TakeMail(&m)
				if full {
					r.kick()
				}
				if ok {
					n++
				}
				return !ok
			})
			t.Logf("node %d: %d messages sent, %d waited", node, sent.Load(), n)
			most := attach.MailSlots + 1 + 2*device.MailboxDepth
			if w.shared { // pfd holds some itself before the device keeps them
				most += device.MailboxDepth + 1 + queues.Entries
			}
			if n > most {
				t.Errorf("%d messages waited, the most is %d", n, most)
			}
		}
	}
	b.fine()
}
