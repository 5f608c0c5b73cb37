package soc

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/fifo"
)

// peekAt reads a register of the peek windows of pl; the read has no side effect
// (docs/spec/peek.md).
func (n *Node) peekAt(t *device.Target) uint64 {
	switch {
	case t.Offset < device.PLPeekRXFIFO:
		return n.words[t.Index]
	case t.Offset >= device.PLPeekChannels:
		c := n.channelState(t.Index/device.ChannelsPerSlot, t.Index%device.ChannelsPerSlot)
		return c.Words()[(t.Offset-device.PLPeekChannels)/8]
	case t.Offset >= device.PLPeekTXFIFO:
		return peekEntry(&n.tx, t.Index, t.Offset-device.PLPeekTXFIFO)
	}
	return peekEntry(&n.rx, t.Index, t.Offset-device.PLPeekRXFIFO)
}

func peekEntry(f *fifo.FIFO, i int, register uint32) uint64 {
	w, ext := f.Entry(i)
	switch register {
	case device.PeekAB:
		return uint64(w[0]) | uint64(w[1])<<32
	case device.PeekCD:
		return uint64(w[2]) | uint64(w[3])<<32
	}
	return uint64(ext)
}

// channelState returns a channel as the peek window shows it. Its age is as of the last event: a
// read is not an event and does not advance the time.
func (n *Node) channelState(slot, ch int) device.ChannelState {
	i := n.fw.Channel(slot, ch)
	s := device.ChannelState{
		PDID: i.SourcePDID, DstPDID: i.DestinationPDID, Generation: i.SourceGeneration, Live: i.Live, Failing: i.Failing,
		Blocks: i.Blocks, Acked: i.Acked, InFlight: i.InFlight, Paused: i.Paused, Issued: i.Issued, Retransmitted: i.Retransmitted,
	}
	if i.Live {
		s.Window, s.Class, s.Oldest, s.Newest, s.AgeNS = i.Window, uint8(i.Class), i.Oldest, i.Newest, max(n.now-i.Began, 0)
	}
	return s
}
