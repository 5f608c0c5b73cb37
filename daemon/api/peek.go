package api

import (
	"slices"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/r5"
)

// channel is the last transfer of a channel.
type channel struct {
	slot, channel int
	descriptor    device.Descriptor   // in btcm, with its present done and status
	state         device.ChannelState // the firmware's, if the node has peek windows
}

// transactions are the transactions of a node, and its clock at that moment.
type transactions struct {
	list []r5.TransactionInfo
	now  int64
}

// domainOf is a domain and its attachment, nil if that has ended.
type domainOf struct {
	domain.Domain
	info *session.Info
}

// fifo is the content of a fault FIFO. Nothing is popped.
type fifo struct {
	source   bool
	level    int
	highest  int // level that the driver has found
	overflow bool
	entries  []fifoEntry // oldest first; none if the node has no peek windows
}

type fifoEntry struct {
	device.FaultEntry
	remaining uint32 // RXFIFO_EXT, bytes
}

// usedChannels returns the channels that have been used, without their state. On the owning
// goroutine.
func usedChannels(n *session.Node) ([]channel, error) {
	var list []channel
	r := device.Reader{Bus: n.Bus()}
	for i := range device.Channels {
		c := channel{slot: i / device.ChannelsPerSlot, channel: i % device.ChannelsPerSlot}
		at := uint32(device.BTCMDescriptors + device.DescriptorSize*i)
		reset := device.DoneReset
		if c.channel >= device.WriteChannels {
			reset = device.DoneReadReset
		}
		if r.Read32(device.BTCM, at+device.DescDone) == reset || r.Err != nil {
			continue // never used, or no device
		}
		var words [device.DescriptorWords]uint64
		for i := range words {
			words[i] = r.Read64(device.BTCM, at+8*uint32(i))
		}
		c.descriptor = device.DescriptorOf(&words)
		list = append(list, c)
	}
	return list, r.Err
}

// Ongoing reports whether a transfer is under way on a node. On the owning goroutine.
func Ongoing(n *session.Node) (bool, error) {
	list, err := usedChannels(n)
	return slices.ContainsFunc(list, func(c channel) bool { return c.ongoing() }), err
}

// readChannels is like usedChannels, with the channels' state. On the owning goroutine.
func readChannels(n *session.Node) ([]channel, error) {
	list, err := usedChannels(n)
	r := &device.Reader{Bus: n.Bus(), Err: err}
	for i := range list {
		c := &list[i]
		if n.Caps()&device.CapsPeek == 0 {
			c.state.DstPDID, c.state.Paused = c.descriptor.DstPDID, int(c.descriptor.Paused)
			continue
		}
		var words [device.PeekChannelWords]uint64
		for k := range words {
			words[k] = r.Read64(device.PL, device.PeekChannel(c.slot, c.channel)+8*uint32(k))
		}
		c.state = device.DecodeChannelState(&words)
	}
	return list, r.Err
}

// readFIFOs reads status and entries of a node's fault FIFOs. On the owning goroutine, which is
// the only one that pops entries.
func readFIFOs(n *session.Node) (list []fifo, _ error) {
	r := device.Reader{Bus: n.Bus()}
	highest := n.Stats().Highest
	for _, source := range []bool{false, true} {
		offset := uint32(device.PLRXFIFOStatus)
		if source {
			if offset = device.PLTXFIFOStatus; n.Caps()&device.CapsTXFIFO == 0 {
				continue
			}
		}
		status := r.Read32(device.PL, offset)
		f := fifo{source: source, level: int(status & device.FIFOLevelMask), highest: highest[len(list)], overflow: status&device.FIFOOverflow != 0}
		for n.Caps()&device.CapsPeek != 0 && len(f.entries) < device.FIFODepth {
			at := device.PeekEntry(source, len(f.entries))
			ab, cd := r.Read64(device.PL, at+device.PeekAB), r.Read64(device.PL, at+device.PeekCD)
			e, ok := device.DecodeFaultEntry([4]uint32{uint32(ab), uint32(ab >> 32), uint32(cd), uint32(cd >> 32)})
			if !ok || r.Err != nil {
				break
			}
			f.entries = append(f.entries, fifoEntry{e, r.Read32(device.PL, at+device.PeekEXT)})
		}
		f.level = max(f.level, len(f.entries)) // entries may have come after the status was read
		f.highest = max(f.highest, f.level)
		list = append(list, f)
	}
	return list, r.Err
}

// statusTexts are the reasons of failed transfers (spec/messages.md 1, reserved_1).
var statusTexts = [...]string{
	device.StatusNone:       "",
	device.StatusSlaveError: "page fault that was never resolved",
	device.StatusDecode:     "bad descriptor, or an address that is not mapped or not permitted",
	device.StatusNoContext:  "no receive context at the target",
	device.StatusCorrupt:    "packets kept arriving corrupted",
	device.StatusDomain:     "protection domain unknown or not admitted at the target",
	device.StatusReserved:   "reserved code",
	device.StatusBufferFull: "destination buffer full",
	device.StatusLimit:      "retransmission limit",
	device.StatusAborted:    "aborted by the process",
	device.StatusGone:       "domain or node gone",
	device.StatusMemory:     "the kernel does not bring memory in",
}

// ongoing reports whether a transfer is under way in the channel.
func (c *channel) ongoing() bool {
	if c.channel < device.WriteChannels {
		return c.descriptor.Done == device.DoneOngoing
	}
	return c.descriptor.Done == device.DoneReadOngoing
}

// stateName names a channel's done value (001 tables 2.2, 3.4).
func (c *channel) stateName() string {
	switch done := c.descriptor.Done; {
	case done == device.DoneCompleted:
		return "completed"
	case done == device.DoneFailed:
		return "failed"
	case c.ongoing():
		return control.ChannelOngoing
	case c.channel < device.WriteChannels && done == device.DoneInitialized:
		return "initialized"
	case c.channel < device.WriteChannels && done == device.DoneReset,
		c.channel >= device.WriteChannels && done == device.DoneReadReset:
		return "reset"
	}
	return "unknown"
}
