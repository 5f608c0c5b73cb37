package r5

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/wire"
)

const (
	ms     = int64(1e6)
	own    = device.NodeID(1)
	target = device.NodeID(2)
	pdid   = device.PDID(7)
	gen    = device.Generation(0x1001) // of all domains
	dst    = device.VA(0x7f00_0000_0000)
)

// rig is a firmware alone: no other part sends, receives or pages in.
type rig struct {
	*testing.T
	fw     *Firmware
	counts [device.Counters]uint64
	now    int64
	done   map[uint8]Command // of slot 0, by channel: the last report
	answer []mailbox.Ack     // to read requests
	ends   int               // reports of an end
	quick  bool              // no audit, because that scans all IDs
}

// newRig returns a firmware with domain 7 in slot 0, a time-out of 10 ms and a guard of 20 ms.
func newRig(t *testing.T, change ...func(*Config)) *rig {
	r := &rig{T: t, done: map[uint8]Command{}}
	cfg := Config{Node: own, VABits: 48, TXFIFO: true}
	for _, c := range change {
		c(&cfg)
	}
	r.fw = New(cfg, &r.counts)
	r.fw.SetDomain(0, pdid, gen, true)
	r.fw.SetTimeout(10_000)
	r.fw.SetGuard(20_000)
	r.fw.SetOutstanding(16)
	return r
}

// blocks performs the firmware's commands and returns the blocks to be sent.
func (r *rig) blocks() []wire.Block {
	r.Helper()
	var all []wire.Block
	for {
		r.fw.Schedule()
		cmds := r.fw.Commands()
		if len(cmds) == 0 {
			break
		}
		for i := range cmds {
			switch c := &cmds[i]; c.Kind {
			case Send:
				all = append(all, c.Block)
			case Update:
				if c.Slot == 0 {
					r.done[c.Channel] = *c
				}
				if c.Done == device.DoneCompleted || c.Done == device.DoneFailed {
					r.ends++
				}
			case Answer:
				a, err := mailbox.DecodeAnswer(c.Word)
				if err != nil {
					r.Errorf("answer %x: %v", c.Word, err)
				}
				r.answer = append(r.answer, a)
			}
		}
	}
	if !r.quick {
		if err := r.fw.Audit(); err != nil {
			r.Fatal(err)
		}
	}
	return all
}

// one returns the only block to be sent.
func (r *rig) one() wire.Block {
	r.Helper()
	b := r.blocks()
	if len(b) != 1 {
		r.Fatalf("%d blocks are to be sent, want 1: %+v", len(b), b)
	}
	return b[0]
}

func (r *rig) none() {
	r.Helper()
	if b := r.blocks(); len(b) != 0 {
		r.Fatalf("%d blocks are to be sent, want none: %+v", len(b), b)
	}
}

// start rings the doorbell for a write of size bytes to at.
func (r *rig) start(slot, ch int, at device.VA, size uint32, change ...func(*device.Descriptor)) {
	d := device.Descriptor{Src: 0x10_0000, Dst: at, Size: size, DstNode: target, DstGeneration: gen}
	for _, c := range change {
		c(&d)
	}
	r.fw.Doorbell(slot, ch, &d)
}

func words(d *device.Descriptor)  { d.Notify, d.First, d.Last = dst+1<<30, 1, 2 }
func urgent(d *device.Descriptor) { d.Urgent = true }

// sent reports that the PLDMA has sent a block.
func (r *rig) sent(b wire.Block) { r.fw.Sent(r.now, b.ID) }

// reply answers a block for the receiver.
func (r *rig) reply(b wire.Block, code device.Code) {
	r.fw.Ack(r.now, b.DstNode, mailbox.Ack{Transaction: b.ID, Code: code, Sequence: b.Seq})
}

// ack sends and acknowledges a block.
func (r *rig) ack(b wire.Block) {
	r.sent(b)
	r.reply(b, device.CodeAck)
}

// expire advances the time to the next deadline and returns the time passed.
func (r *rig) expire() int64 {
	r.Helper()
	d := r.fw.Deadline() - r.now
	if d > 1<<60 {
		r.Fatal("the firmware has no deadline")
	}
	r.fw.Expire(r.now + d - 1)
	r.none() // not before it is due
	r.now += d
	r.fw.Clock(r.now)
	r.fw.Expire(r.now)
	return d
}

func (r *rig) rapf(b wire.Block) {
	r.fw.RAPF(r.now, b.DstNode, mailbox.RAPF{Generation: gen, PDID: b.DstPDID, Claimed: b.DstPDID, Transaction: b.ID, Sequence: b.Seq})
}
