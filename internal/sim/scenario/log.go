package scenario

import (
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/sim"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/wire"
)

// EventKind is the kind of an event.
type EventKind uint8

// The events of a transfer.
const (
	Started        EventKind = iota // its doorbell rings, or its request is sent
	BlockSent                       // a block is on its way
	BlockLost                       // the network has lost it
	BlockArrived                    // the target has it
	BlockTaken                      // it is acknowledged
	BlockFaulted                    // it is refused for a page fault
	BlockRefused                    // it is refused for another reason
	BlockRequested                  // its retransmission is requested
	Ended                           // the transfer has ended
)

// String returns the event in words.
func (k EventKind) String() string {
	return [...]string{"started", "block sent", "block lost", "block arrived", "acknowledgement sent", "page fault reported", "block refused", "retransmission requested", "ended"}[k]
}

// Event is something that happens to a transfer.
type Event struct {
	At       int64 // ns
	Kind     EventKind
	Transfer int
	Node     int // where it happens
	Block    int // -1: the whole transfer
	Sequence int
	Code     device.Code // of a refusal
	Status   uint8       // of Ended
}

// String returns the event as a line.
func (e *Event) String() string {
	s := fmt.Sprintf("%12.3f us  node %-4d transfer %-5d ", float64(e.At)/1e3, e.Node, e.Transfer)
	if e.Block >= 0 {
		s += fmt.Sprintf("block %-4d ", e.Block)
	}
	s += e.Kind.String()
	switch {
	case e.Kind == BlockRefused:
		s += fmt.Sprintf(", code %d", e.Code)
	case e.Kind == Ended && e.Status != 0:
		s += fmt.Sprintf(" with status %d", e.Status)
	}
	return s
}

// log finds the transfers that frames belong to. A nil log does nothing.
type log struct {
	r      *run
	watch  func(*Event)
	blocks map[blockID]blockOf // as last sent
	last   blockOf             // the block that the network was just given
	is     bool
}

// blockID names a block on the network: its sender and its transaction.
type blockID struct {
	node device.NodeID
	id   device.TransactionID
}

type blockOf struct {
	job   *job
	block int
}

func newLog(r *run, watch func(*Event)) *log {
	return &log{r: r, watch: watch, blocks: map[blockID]blockOf{}}
}

// add passes an event to the watch.
func (l *log) add(j *job, kind EventKind, block, node int) {
	if l == nil {
		return
	}
	if block < 0 {
		node = j.initiator().node
	}
	l.watch(&Event{At: l.r.world.Now(), Kind: kind, Transfer: j.index, Node: node, Block: block, Status: j.status})
}

func (l *log) put(b blockOf, kind EventKind, f *wire.Frame, node device.NodeID, code device.Code) {
	l.watch(&Event{At: l.r.world.Now(), Kind: kind, Transfer: b.job.index, Node: int(node), Block: b.block, Sequence: int(f.Seq), Code: code})
}

// sent notes a frame that a node passes to the network.
func (l *log) sent(n *sim.Node, f *wire.Frame) {
	if l == nil {
		return
	}
	l.is = false
	switch f.Kind {
	case wire.Data, wire.Words:
		j := l.r.seats[f.DstNode].regionAt(f.VA)
		if j == nil {
			return
		}
		b := blockOf{j, int(f.Block)}
		l.blocks[blockID{f.SrcNode, f.ID}], l.last, l.is = b, b, true
		l.put(b, BlockSent, f, f.SrcNode, 0)
	case wire.Ack:
		b, ok := l.blocks[blockID{f.DstNode, f.ID}]
		if !ok || f.MessageLen != 0 {
			return
		}
		kind := BlockRefused
		switch f.Code {
		case device.CodeAck:
			kind = BlockTaken
		case device.CodeSlaveError:
			kind = BlockFaulted
		}
		l.put(b, kind, f, f.SrcNode, f.Code)
	case wire.Message:
		if m, err := mailbox.DecodeRAPF(f.Message[0]); err == nil && f.DstMailbox == device.MailboxRequest {
			if b, ok := l.blocks[blockID{f.DstNode, m.Transaction}]; ok && !m.Fail {
				l.put(b, BlockRequested, f, f.SrcNode, 0)
			}
		}
	}
}

// carried notes a lost block.
func (l *log) carried(out []link.Delivery) {
	if l != nil && l.is && len(out) == 0 {
		l.watch(&Event{At: l.r.world.Now(), Kind: BlockLost, Transfer: l.last.job.index, Node: l.last.job.From, Block: l.last.block})
	}
}

// arrived notes a block that has reached its target.
func (l *log) arrived(f *wire.Frame) {
	if l == nil || f.Kind != wire.Data && f.Kind != wire.Words {
		return
	}
	if b, ok := l.blocks[blockID{f.SrcNode, f.ID}]; ok {
		l.put(b, BlockArrived, f, f.DstNode, 0)
	}
}
