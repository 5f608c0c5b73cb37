package space

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/proc"
)

// View is memory that a process shares, as pfd maps it; *view.View implements it.
type View interface {
	Has(va device.VA, pages int, write bool) bool
	ReadV(dst [][]byte, va device.VA) bool
	WriteV(src [][]byte, va device.VA) bool
	WriteWords(words []byte, va device.VA) bool
	Window(va device.VA, pages int, write bool) (at device.VA, n int, ok bool)
	Shares(va device.VA, pages int, write bool) (start device.VA, n int)
	Enter(va device.VA, pages int, there uint64) (entered uint64)
	Look(va device.VA, pages int) (absent uint64)
	PageIn(va device.VA, pages int, write bool) (entered, filled uint64)
}

// Stages of an operation in shared memory; zero: it is the other Space's.
const (
	touched stage = iota + 1 // by the view
	entered                  // by the other Space; the pages that a walk finds are entered in the view
	looked                   // by the file
	filled                   // by the file
)

type shared struct {
	Space // of memory that is not shared, or not entered in the view
	view  View
	// byFile means that the file of the memory answers walks and page-ins, not the other Space.
	byFile bool
}

// NewShared returns a Space that touches the memory that a process shares, and leaves to other all
// memory that is not shared or not entered in the view. byFile means that other must ask the
// process, and that the file behind the view answers sooner.
func NewShared(v View, other Space, byFile bool) Space { return &shared{other, v, byFile} }

// Start implements Space.
func (s *shared) Start(op *Op, now int64, touch bool) Step {
	switch {
	case !op.PagesIn() && touch:
		op.stage = touched
		return Touch
	case op.PagesIn() && s.byFile:
		if _, n := s.view.Shares(op.VA, op.Pages, op.Write); n > 0 {
			op.stage = filled
			return Run
		}
	}
	return s.Space.Start(op, now, touch)
}

// Run implements Space.
func (s *shared) Run(op *Op) {
	switch op.stage {
	case touched:
		op.hit = s.touch(op)
	case looked:
		op.Walked = proc.Walk{Absent: s.view.Look(op.VA, op.Pages)}
	case filled:
		there, new := s.view.PageIn(op.VA, op.Pages, op.Write)
		op.Paged = gup.Result{Resident: there}
		op.Paged.Since(there &^ new)
	case entered:
		if s.Space.Run(op); op.Err == nil {
			s.view.Enter(op.VA, op.Pages, ^(op.Walked.Absent | op.Walked.Denied))
		}
	default:
		s.Space.Run(op)
	}
}

// touch does a walk or a move by the view. False: it has to be done otherwise, and a walk looks
// further then.
func (s *shared) touch(op *Op) bool {
	v := s.view
	switch {
	case op.Kind == Walk:
		op.Walked = proc.Walk{}
		if v.Has(op.VA, op.Pages, op.Write) {
			return true
		}
		if va, pages, ok := v.Window(op.VA, op.Pages, op.Write); ok {
			// Shared memory has no copies: to be written a page need only be there.
			op.VA, op.Pages, op.Write, op.Shared = va, pages, false, true
		}
		return false
	case op.Kind == Words && !v.WriteWords(op.Bufs[0], op.VA),
		op.Kind == Move && op.Write && !v.WriteV(op.Bufs, op.VA),
		!op.Write && !v.ReadV(op.Bufs, op.VA):
		return false
	}
	for _, b := range op.Bufs {
		op.Moved += len(b)
	}
	return true
}

// Next implements Space.
func (s *shared) Next(op *Op, now int64) Step {
	switch op.stage {
	case touched:
		switch {
		case op.hit:
			return Over
		case op.Shared && s.byFile:
			op.stage = looked
			return Run
		case op.Shared:
			op.stage = entered
		default:
			op.stage = 0
		}
	case filled:
		if op.Paged.Resident&1 != 0 {
			return Over
		}
		op.stage = 0 // in swap, or nothing fills it: the process is asked for it
	case entered, looked:
		return Over
	default:
		return s.Space.Next(op, now)
	}
	return s.Space.Start(op, now, false)
}
