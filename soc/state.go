package soc

import (
	"encoding/binary"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/soc/fifo"
	"github.com/exanet/pfd/soc/gsas"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/queue"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/smmu"
	"github.com/exanet/pfd/soc/window"
	"github.com/exanet/pfd/soc/wire"
)

// Config describes a node.
type Config struct {
	ID device.NodeID
	// VABits is the width of virtual addresses, 39..48.
	VABits int
	// NoTXFIFO leaves source faults to time-outs, as on the papers' hardware.
	NoTXFIFO bool
	// Stall: faults may stall in the SMMU (CAPS[26]).
	Stall bool
	// SVA: walks read the processes' own page tables (CAPS[27]).
	SVA bool
	// Windows: the node has memory windows (CAPS[30]).
	Windows bool
	// GSAS: the node has threads and a GSAS unit (CAPS[31]).
	GSAS bool
	// Queues: the node can have queues in memory (CAPS[28]); the engine performs their accesses
	// (QueueAccess).
	Queues bool
	// Epoch is the node's first epoch, a random number (messages.md 5). A node must not restart
	// with an epoch that it has used.
	Epoch uint32
	// Pool is shared by the nodes of one engine.
	Pool *wire.Pool
	// Like is an earlier node of the same goroutine and with the same capabilities, with which the node
	// shares memory that is no state; nil means none.
	Like *Node
	// Route reports whether a node can be reached; nil means every node can.
	Route func(device.NodeID) bool
	// Base and Nodes say which nodes are of the same host; 0 nodes: all are.
	Base  device.NodeID
	Nodes uint32
	// Others is shared by the nodes of a host (r5.Config).
	Others r5.Others
	// Firmware switches off optimizations of the firmware.
	Firmware r5.Options
	// IDs, FIFO and Contexts limit the number of transaction IDs, of entries in the page-fault
	// FIFOs and of receive contexts, for tests that exhaust them; 0 means no limit below the
	// hardware's.
	IDs, FIFO, Contexts int
	// PathFeedback limits the rate of blocks to each node (r5.Config).
	PathFeedback bool
	// BTCM backs window btcm if its memory is shared; nil means private memory.
	BTCM []byte
}

// Node is one emulated node. It belongs to one goroutine.
type Node struct {
	cfg    Config
	id     device.NodeID
	counts [device.Counters]uint64

	fw     *r5.Firmware
	dma    *pldma.Engine
	smmu   *smmu.SMMU
	rx, tx fifo.FIFO
	places *places
	boxes  [device.Interfaces]box
	mailed bool // a mailbox of the driver may have a message
	pktz   [device.Interfaces]packetizerPage
	queues queue.Machine
	unit   *gsas.Unit     // nil without Config.GSAS
	calls  []*gsas.Access // of the driver, which is told by an event

	ctrl        uint32
	irqStatus   uint32
	irqMask     uint32
	irqSent     uint32 // vectors that are asserted: STATUS and not MASK
	timeoutUS   uint32
	guardUS     uint32
	outstanding uint32
	pktzCfg     [device.Interfaces]uint64
	mboxCfg     [device.Interfaces]uint64
	pktzProt    [device.Interfaces]uint64
	evented     uint64 // a bit for each mailbox whose messages go into events
	mailRead    bool   // from one of these: others may be due, at the next step
	pdCfg       [device.Slots]uint64
	peers       [device.Slots][4]uint64
	btcm        []byte
	latch       [device.Counters]uint32 // high halves latched by reads of the low ones
	words       [device.Slots]uint64    // completion words written (WORDS)
	windows     window.Unit

	now   int64
	out   []Action
	later []*wire.Frame // pieces of blocks (Options.NoWholeBlocks), sent one a step
}

// ID returns the node's ID.
func (n *Node) ID() device.NodeID { return n.id }

// Count returns the value of a counter.
func (n *Node) Count(c device.Counter) uint64 { return n.counts[c] }

// Channel describes a channel, as the firmware keeps it.
func (n *Node) Channel(slot, ch int) r5.ChannelInfo { return n.fw.Channel(slot, ch) }

// Transactions returns the transactions in flight, as the firmware keeps them.
func (n *Node) Transactions() []r5.TransactionInfo { return n.fw.Transactions() }

// PeekFault returns entry i of RXFIFO (or TXFIFO) and its EXT without popping it.
func (n *Node) PeekFault(source bool, i int) (device.FaultEntry, uint32, bool) {
	if source {
		return n.tx.Peek(i)
	}
	return n.rx.Peek(i)
}

// Ended counts the transfers of the node that have ended.
func (n *Node) Ended() *tally.Node { return n.fw.Ended() }

// Invalidations returns the page counts of smmu.SMMU.Invalidations.
func (n *Node) Invalidations() [device.Slots]uint64 { return n.smmu.Invalidations() }

// Tables returns the roots of a slot's page-table walks (shadow translation).
func (n *Node) Tables(slot int) smmu.Tables { return n.smmu.Tables(n.smmu.Bank(uint16(slot))) }

// Stamp sets the time by a clock other than the machines', before a Step or a Store. Refusals
// reports it; nothing else depends on it.
func (n *Node) Stamp(v int64) { n.fw.Stamp(v) }

// Refusals returns the blocks whose wait for pages ended in the last Step or Store.
func (n *Node) Refusals() []r5.Refusal { return n.fw.Refusals() }

// Introduce is pldma.Engine.Introduce.
func (n *Node) Introduce(other *Node) { n.dma.Introduce(other.dma) }

// Audit checks the invariants that hold between two steps whatever the inputs were, and returns
// the first violation. It is for tests and simulations.
func (n *Node) Audit() error {
	if err := n.fw.Audit(); err != nil {
		return err
	}
	return n.dma.Audit()
}

// OpenContexts returns the number of receive contexts in use.
func (n *Node) OpenContexts() int { return n.dma.OpenContexts() }

func (n *Node) copyDescriptor(slot, ch int, words *[device.DescriptorWords]uint64) {
	if slot < 0 || slot >= device.Slots || ch < 0 || ch >= device.ChannelsPerSlot {
		return
	}
	at := device.BTCMDescriptors + device.PageSize*slot + device.DescriptorSize*ch
	for i, w := range words {
		binary.LittleEndian.PutUint64(n.btcm[at+8*i:], w)
	}
}

// doorbell reads a descriptor from the BTCM exactly once and passes the copy to the firmware.
func (n *Node) doorbell(slot, ch int) {
	if n.ctrl&device.CtrlEnable == 0 || slot < 0 || slot >= device.Slots || ch < 0 || ch >= device.ChannelsPerSlot {
		n.counts[device.DoorbellDenied]++
		return
	}
	at := device.BTCMDescriptors + device.PageSize*slot + device.DescriptorSize*ch
	var words [device.DescriptorWords]uint64
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(n.btcm[at+8*i:])
	}
	d := device.DescriptorOf(&words)
	n.fw.Doorbell(slot, ch, &d)
}

// clearBTCM sets the window to its reset state.
func (n *Node) clearBTCM() {
	clear(n.btcm)
	n.freeDescriptors()
}

// freeDescriptors sets the done of every descriptor to its reset state: 0xffffffff in a write channel and
// 2 in a read channel (001 tables 2.2, 3.4).
func (n *Node) freeDescriptors() {
	for slot := 0; slot < device.Slots; slot++ {
		for ch := 0; ch < device.ChannelsPerSlot; ch++ {
			done := device.DoneReset
			if ch >= device.WriteChannels {
				done = device.DoneReadReset
			}
			at := device.BTCMDescriptors + device.PageSize*slot + device.DescriptorSize*ch
			binary.LittleEndian.PutUint32(n.btcm[at+device.DescDone:], done)
		}
	}
}

// caps returns this node's CAPS.
func (n *Node) caps() uint64 {
	v := uint64(n.cfg.VABits) | device.Slots<<device.CapsBanksShift | device.FIFODepth<<device.CapsDepthShift | device.CapsWideIOVA | device.CapsPeek
	if !n.cfg.NoTXFIFO {
		v |= device.CapsTXFIFO
	}
	if n.cfg.Stall {
		v |= device.CapsStall
	}
	if n.cfg.SVA {
		v |= device.CapsSVA
	}
	if n.cfg.Queues {
		v |= device.CapsQueues
	}
	if n.cfg.Windows {
		v |= device.CapsWindows
	}
	if n.cfg.GSAS {
		v |= device.CapsGSAS
	}
	return v
}
