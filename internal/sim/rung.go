package sim

import (
	"io"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/record"
)

// Rung is a transfer that a recording has.
type Rung struct {
	At       int64         // of the recorded clock, ns: its doorbell, or the begin of the service of a read
	From, To device.NodeID // less the base of the recorded nodes' ids
	Size     uint32
	Read     bool
	Urgent   bool
}

// Transfers replays a recording and returns the transfers that its machines began. Errors are those of
// Replay; the list is valid up to the error.
func Transfers(in io.Reader) (list []Rung, r Replayed, err error) {
	type channel struct {
		node     int
		slot, ch uint8
	}
	live := map[channel]bool{}
	r, err = replay(in, func(h *record.Header, at int64, node int, n *soc.Node, out []soc.Action) {
		for i := range out {
			a := &out[i]
			if a.Kind != soc.DescriptorChanged {
				continue
			}
			c := channel{node, a.Slot, a.Channel}
			began := !live[c]
			live[c] = a.Done == device.DoneOngoing || a.Done == device.DoneReadOngoing
			if began && live[c] {
				d := n.Channel(int(a.Slot), int(a.Channel)).Descriptor
				to := d.DstNode - h.Base
				if uint64(to) >= uint64(h.Nodes) {
					continue // to another host
				}
				list = append(list, Rung{at, device.NodeID(node), to, d.Size, a.Channel >= device.WriteChannels, d.Urgent})
			}
		}
	})
	return list, r, err
}
