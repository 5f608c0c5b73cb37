package daemon

import (
	"github.com/exanet/pfd/device"
)

// channel is a channel that has been used: its last transfer.
type channel struct {
	slot, channel int
	descriptor    device.Descriptor   // as it stands in btcm, with its present done and status
	state         device.ChannelState // where the node has peek windows: as the firmware has it
}

// fifo is one fault FIFO, peeked at: nothing is popped.
type fifo struct {
	source   bool
	level    int
	highest  int // that the driver found since it began
	overflow bool
	entries  []fifoEntry // oldest first; none where the node has no peek windows
}

type fifoEntry struct {
	device.FaultEntry
	remaining uint32 // RXFIFO_EXT, bytes
}

// usedChannels gives the channels that have been used, by their descriptors alone.
// On the owning goroutine.
func usedChannels(n *node) ([]channel, error) {
	var list []channel
	r := &reader{bus: n.bus}
	for i := range device.Channels {
		c := channel{slot: i / device.ChannelsPerSlot, channel: i % device.ChannelsPerSlot}
		at := uint32(device.BTCMDescriptors + device.DescriptorSize*i)
		reset := device.DoneReset
		if c.channel >= device.WriteChannels {
			reset = device.DoneReadReset
		}
		if r.read32(device.BTCM, at+device.DescDone) == reset || r.err != nil {
			continue // never used, or no device
		}
		var words [device.DescriptorWords]uint64
		for i := range words {
			words[i] = r.read64(device.BTCM, at+8*uint32(i))
		}
		c.descriptor = device.DescriptorOf(&words)
		list = append(list, c)
	}
	return list, r.err
}

// readChannels is usedChannels with what the firmware knows of them. On the owning
// goroutine.
func readChannels(n *node) ([]channel, error) {
	list, err := usedChannels(n)
	r := &reader{bus: n.bus, err: err}
	for i := range list {
		c := &list[i]
		if n.caps.Load()&device.CapsPeek == 0 {
			c.state.DstPDID, c.state.Paused = c.descriptor.DstPDID, int(c.descriptor.Paused)
			continue
		}
		var words [device.PeekChannelWords]uint64
		for k := range words {
			words[k] = r.read64(device.PL, device.PeekChannel(c.slot, c.channel)+8*uint32(k))
		}
		c.state = device.DecodeChannelState(&words)
	}
	return list, r.err
}

// readFIFOs reads status and entries of a node's fault FIFOs. On the owning
// goroutine, which is the only one that pops: what was there stays there.
func readFIFOs(n *node) (list []fifo, _ error) {
	r := &reader{bus: n.bus}
	highest := n.faults.Stats().Highest
	for _, source := range []bool{false, true} {
		offset := uint32(device.PLRXFIFOStatus)
		if source {
			if offset = device.PLTXFIFOStatus; n.caps.Load()&device.CapsTXFIFO == 0 {
				continue
			}
		}
		status := r.read32(device.PL, offset)
		f := fifo{source: source, level: int(status & device.FIFOLevelMask), highest: highest[len(list)], overflow: status&device.FIFOOverflow != 0}
		for n.caps.Load()&device.CapsPeek != 0 && len(f.entries) < device.FIFODepth {
			at := device.PeekEntry(source, len(f.entries))
			ab, cd := r.read64(device.PL, at+device.PeekAB), r.read64(device.PL, at+device.PeekCD)
			e, ok := device.DecodeFaultEntry([4]uint32{uint32(ab), uint32(ab >> 32), uint32(cd), uint32(cd >> 32)})
			if !ok || r.err != nil {
				break
			}
			f.entries = append(f.entries, fifoEntry{e, r.read32(device.PL, at+device.PeekEXT)})
		}
		f.level = max(f.level, len(f.entries)) // more may have come since
		f.highest = max(f.highest, f.level)
		list = append(list, f)
	}
	return list, r.err
}
