package emu

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/record"
)

// RecordHeader gives the header of a recording of this engine (package record).
func (e *Engine) RecordHeader() record.Header {
	return record.Header{
		Nodes: len(e.nodes), VABits: e.cfg.VABits, NoTXFIFO: e.cfg.NoTXFIFO, Stall: e.cfg.Stall, SVA: e.cfg.Outside == nil, Queues: e.nodes[0].outside.DMA != nil,
		Epoch: e.epoch, Started: e.base.UnixNano(), Firmware: e.cfg.Firmware,
	}
}

// Record has the inputs of all nodes recorded from now on. It is called before
// Run, before anything reaches a window. Nodes that are driven from another
// process are not recorded whole: their btcm changes without the engine's doing.
// A recording costs nothing where there is none but a look at a pointer.
func (e *Engine) Record(w *record.Writer) { e.recorder = w }

// load reads a register for the driver.
func (e *Engine) load(n *node, id device.WindowID, off uint32, width int) uint64 {
	v := n.soc.Load(id, off, width)
	if e.recorder != nil {
		e.recorder.Load(n.index, id, off, width, v)
	}
	return v
}
