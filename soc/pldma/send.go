package pldma

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/fifo"
	"github.com/exanet/pfd/soc/wire"
)

// Forget releases the bytes held for a block: it will not be retransmitted or, if it is, it will
// be read again.
func (e *Engine) Forget(id device.TransactionID) {
	if h := e.held.At(int(id)); h.share != nil {
		e.cfg.Pool.Release(h.payload, h.share)
		*h = heldBlock{}
	}
}

func (e *Engine) transmit(b *wire.Block, payload []byte) {
	f := e.cfg.Pool.Frame()
	f.Header = b.Header
	f.Epoch, f.Link = e.epoch, e.links[b.DstNode]
	f.HasWords, f.Completion = b.HasWords, b.Completion
	f.Payload = payload
	if h := e.held.At(int(b.ID)); h.share != nil {
		f.Shared = h.share
		f.Shared.Holders++
	}
	f.Present = wire.All(len(payload))
	e.cfg.Counts[device.TXPackets] += uint64(wire.Packets(len(payload)))
	if f.HasWords {
		e.cfg.Counts[device.TXPackets]++
	}
	if b.Length == 0 {
		f.Kind = wire.Words
	}
	e.sink.Transmit(f)
}

// Linked handles the link number that another node assigned to this life, and resends the block
// that had been sent without it.
func (e *Engine) Linked(f *wire.Frame) {
	if f.Epoch != e.epoch || f.ID >= device.Transactions {
		e.cfg.Counts[device.AckStale]++
		return
	}
	e.links[f.SrcNode] = f.Link
	if h := e.held.At(int(f.ID)); h.share != nil && h.block.DstNode == f.SrcNode && h.block.Seq == f.Seq {
		e.transmit(&h.block, h.payload)
	}
}

// readEnded handles the end of a read access, which may have failed.
func (e *Engine) readEnded(a *Access, ok bool, failed uint64) {
	id := a.block.ID
	switch {
	case a.orphan:
		e.cfg.Pool.PutPayload(a.Data)
	case a.gone:
		e.cfg.Pool.PutPayload(a.Data)
		e.sink.SourceFault(id)
	case ok:
		e.Forget(id)
		*e.held.At(int(id)) = heldBlock{block: a.block, payload: a.Data, share: e.cfg.Pool.Share()}
		e.transmit(&a.block, a.Data)
		e.sink.Sent(id)
	default:
		e.push(e.cfg.TX, &a.block.Header, e.cfg.Node, a.block.SrcPDID, a.VA, failed, a.block.Source)
		e.cfg.Pool.PutPayload(a.Data)
		e.sink.SourceFault(id)
	}
	e.drop(a)
}

// push adds one FIFO entry for each failed page of an access at va. base is the address of the
// block's first byte on the faulting side, from which the header's remaining bytes are counted.
func (e *Engine) push(q *fifo.FIFO, h *wire.Header, src device.NodeID, pdid device.PDID, va device.VA, failed uint64, base device.VA) {
	if q == nil {
		return
	}
	for i := 0; failed>>uint(i) != 0; i++ {
		if failed>>uint(i)&1 == 0 {
			continue
		}
		page := va.Page() + device.VA(i)<<device.PageShift
		ext := h.Remaining
		if page > base {
			if off := uint64(page - base); off < uint64(ext) {
				ext -= uint32(off)
			} else {
				ext = 0
			}
		}
		switch q.Push(device.FaultEntry{
			Source: src, Transaction: h.ID, Sequence: h.Seq, PDID: pdid,
			Page: uint64(page) >> device.PageShift, Response: device.ResponseSlaveError,
		}, ext) {
		case fifo.Pushed:
			e.cfg.Counts[device.FIFOPush]++
		case fifo.Duplicate:
			e.cfg.Counts[device.FIFODedup]++
		case fifo.Overflowed:
			e.cfg.Counts[device.FIFOOverflows]++
		}
	}
}

func (e *Engine) drop(a *Access) {
	*a = Access{ID: a.ID, next: e.freeList}
	e.freeList = a
}

// nack answers a block once; the context stays until a newer sequence number arrives, so that the
// block's later absent pages are reported too.
func (e *Engine) nack(c *context, code device.Code) {
	if c.nacked || c.dead {
		return
	}
	c.nacked = true
	if c.rec.newest == c.header.Seq {
		c.rec.answered = true
	}
	e.answer(&c.header, code)
}

// answer sends the one answer for (source, ID, sequence number).
func (e *Engine) answer(h *wire.Header, code device.Code) {
	f := e.cfg.Pool.Frame()
	f.Header = wire.Header{
		Kind: wire.Ack, Epoch: h.Epoch,
		SrcNode: e.cfg.Node, SrcPDID: h.DstPDID, DstNode: h.SrcNode, DstPDID: h.SrcPDID, DstMailbox: device.MailboxAck,
		SrcGeneration: h.DstGeneration, DstGeneration: h.SrcGeneration,
		ID: h.ID, Seq: h.Seq, First: h.First, Code: code,
	}
	e.cfg.Counts[device.TXPackets]++
	e.sink.Transmit(f)
}
