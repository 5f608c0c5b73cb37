package space

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space/proc"
)

// Memory is memory that is accessed by calls which may sleep; *proc.Process implements it. It is
// safe for concurrent use.
type Memory interface {
	Walk(va device.VA, pages int, write bool) (proc.Walk, error)
	ReadV(dst [][]byte, va device.VA) (int, error)
	WriteV(src [][]byte, va device.VA) (int, error)
}

// Pager pages in pages of one process by calls which may sleep; *gup.Pager and *gup.Regions
// implement it. It is safe for concurrent use.
type Pager interface {
	// PageIn makes 1 to 64 pages resident and accessible, up to the end of the mapping that
	// contains the first page. If the first page is not, the Result's Err says why:
	// gup.ErrUnmapped, ErrDenied, ErrGone, ErrPermission, ErrPastEnd, ErrUnmappable and
	// ErrNotShared are final, any other error is temporary.
	PageIn(va device.VA, pages int, write bool) gup.Result
}

type direct struct {
	Prompt
	memory Memory
	pager  Pager
}

// NewDirect returns a Space that makes the calls of memory and pager. Without a pager, page-ins
// fail with gup.ErrGone.
func NewDirect(memory Memory, pager Pager) Space { return &direct{memory: memory, pager: pager} }

// Start implements Space.
func (d *direct) Start(*Op, int64, bool) Step { return Run }

// Run implements Space.
func (d *direct) Run(op *Op) {
	switch {
	case !op.PagesIn():
		Access(d.memory, op)
	case d.pager == nil:
		op.Fail(gup.ErrGone)
	default:
		op.Paged = d.pager.PageIn(op.VA, op.Pages, op.Write)
	}
}

// Access performs an operation that does not page in.
func Access(m Memory, op *Op) {
	switch {
	case op.Kind == Walk:
		op.Walked, op.Err = m.Walk(op.VA, op.Pages, op.Write)
	case op.Kind == Words:
		words := op.Bufs[0]
		one := [1][]byte{words[:8]}
		if op.Moved, op.Err = m.WriteV(one[:], op.VA); op.Err != nil || op.Moved < 8 {
			return
		}
		one[0] = words[8:16]
		var second int
		second, op.Err = m.WriteV(one[:], op.VA+8)
		op.Moved += second
	case op.Write:
		op.Moved, op.Err = m.WriteV(op.Bufs, op.VA)
	default:
		op.Moved, op.Err = m.ReadV(op.Bufs, op.VA)
	}
}
