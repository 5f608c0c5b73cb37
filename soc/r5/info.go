package r5

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/tally"
)

// ChannelInfo describes a channel's last transfer.
type ChannelInfo struct {
	Live, Failing    bool
	Descriptor       device.Descriptor // as taken at the doorbell
	Issued           uint32            // bytes
	Blocks, Acked    uint32
	InFlight, Paused int
	Retransmitted    uint32 // blocks
	Window           int    // blocks that may be in flight
	SourcePDID       device.PDID
	SourceGeneration device.Generation
	DestinationPDID  device.PDID
	Class            Class
	Began            int64 // ns
	// Oldest and Newest are the sequence numbers of the first and the last issued of the blocks
	// in flight, 0 if there are none.
	Oldest, Newest device.Sequence
}

// Channel describes channel ch of a slot.
func (fw *Firmware) Channel(slot, ch int) ChannelInfo {
	x := fw.channels.Find(slot*device.ChannelsPerSlot + ch)
	if x == nil {
		x = new(transfer)
	}
	i := ChannelInfo{
		Live: x.live, Failing: x.failing, Descriptor: x.desc, Issued: x.issued,
		Blocks: x.blocks, Acked: x.acked, InFlight: x.inflight, Paused: x.paused, Retransmitted: x.resent,
		SourcePDID: x.pdid, SourceGeneration: x.generation, DestinationPDID: x.dst, Window: fw.window(x), Class: x.classNow(), Began: x.began,
	}
	if x.live && x.first >= 0 {
		i.Newest = fw.tx.At(int(x.first)).seq
		for id := x.first; id >= 0; id = fw.tx.At(int(id)).peer {
			i.Oldest = fw.tx.At(int(id)).seq
		}
	}
	return i
}

// Ended returns the counts of the transfers that have ended since New.
func (fw *Firmware) Ended() *tally.Node { return &fw.ended }

// TransactionInfo is one used row of the transaction table.
type TransactionInfo struct {
	ID              device.TransactionID
	Slot, Channel   int
	Node            device.NodeID // destination
	PDID            device.PDID   // of the source
	DestinationPDID device.PDID
	State           string // issued, retransmitted, paused, backoff
	Sending         bool   // at the PLDMA
	Words           bool   // carries the completion words
	Sequence        device.Sequence
	First           device.Sequence // of this use of the id
	Block           uint32
	Blocks, Acked   uint32 // of the transfer; of these, acknowledged
	Offset          uint32 // bytes in the transfer
	Length          uint32 // bytes
	Attempts        int    // retransmissions since the last ACK or RAPF
	RAPFs           int
	LastCode        device.Code
	Began           int64 // ns
	Due             int64 // ns: time-out, guard or end of back-off; 0 for none
	Class           Class
}

// Transactions returns the transactions in flight, ordered by ID.
func (fw *Firmware) Transactions() []TransactionInfo {
	var list []TransactionInfo
	for i, t := range fw.tx.All() {
		if t.state == stateFree {
			continue
		}
		x := t.transfer
		info := TransactionInfo{
			ID: device.TransactionID(i), Slot: int(x.slot), Channel: int(x.channel) % device.ChannelsPerSlot,
			Node: t.node, PDID: x.pdid, DestinationPDID: x.dst, State: t.state.String(), Sending: t.sending > 0,
			Words: t.words, Sequence: t.seq, First: t.first, Block: t.block, Blocks: x.blocks, Acked: x.acked, Offset: t.offset, Length: uint32(t.length),
			Attempts: t.attempts, RAPFs: t.rapfs, LastCode: t.lastCode, Began: t.began, Class: x.classNow(),
		}
		if t.list != listNone && t.list != listHeld {
			info.Due = t.since + fw.period(int(t.list))
		}
		list = append(list, info)
	}
	return list
}

func (s state) String() string {
	switch s {
	case stateRetransmitted:
		return "retransmitted"
	case statePaused:
		return "paused"
	case stateNacked:
		return "backoff"
	}
	return "issued"
}
