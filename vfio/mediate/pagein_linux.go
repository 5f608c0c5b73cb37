package mediate

import (
	"errors"
	"math/bits"

	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
)

// Space returns what pages in for the driver of a node.
func (m *Machine) Space(node int) space.Machine { return m.nodes[node] }

// PageIn implements space.Machine.
func (n *node) PageIn(slot int, op *space.Op, long bool) {
	n.do(slot, &pageIn{node: n, slot: n.slots[slot], index: slot, op: op}, !long && n.prompt(slot, op.VA, op.Pages))
}

// pageIn is a page-in of the driver's, for a device with tables of pfd's own: where the process's
// own memory is to come in first, that, and then the pages are entered in the tables.
type pageIn struct {
	node  *node
	slot  *slot // nil: no process is attached
	index int
	op    *space.Op
	gone  bool // the address space is
}

// Run implements work.
func (p *pageIn) Run() {
	op := p.op
	op.Start()
	p.enter()
	op.End()
}

func (p *pageIn) enter() {
	op := p.op
	mem, err := p.node.m.Memory(p.node.index)
	if err != nil {
		op.Paged.Err = err // it passes, or the slot is ended
		return
	}
	if op.Kind == space.Remap {
		op.Paged = mem.Remap(p.index, op.VA, op.Write)
		op.Paged.There = op.Paged.Err == nil // so that fault goes on counting (vain)
		return
	}
	if p.slot == nil || p.slot.att.Space == nil {
		op.Paged = mem.PageIn(p.index, op.VA, op.Pages, op.Write)
		return
	}
	space.Do(p.slot.att.Space, op)
	p.gone = errors.Is(op.Paged.Err, proc.ErrGone)
	came := op.Paged
	if n := bits.TrailingZeros64(^came.Resident); n > 0 {
		op.Paged = mem.PageIn(p.index, op.VA, n, op.Write)
		op.Paged.New, op.Paged.Kind = came.New&op.Paged.Resident, came.Kind
	}
}

// Done implements work.
func (p *pageIn) Done() {
	if p.gone && p.slot.att.Gone != nil {
		p.slot.att.Gone()
	}
	p.op.Done()
}
