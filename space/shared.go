package space

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space/proc"
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

// The stages of an operation, each the step that was started last. At zero the other Space has the
// operation.
const (
	mapping  stage = iota + 1 // access through the view
	entering                  // walk of the other Space, whose pages are then entered in the view
	looking                   // walk of the file
	filling                   // page-in into the file
)

type shared struct {
	Space // of memory that is not shared, or not entered in the view
	view  View
	// byFile means that walks and page-ins of shared memory use the file, not the other Space.
	byFile bool
}

// NewShared returns a Space that accesses the memory that a process shares through v, without system
// calls, as far as its pages are entered in v. All other memory is left to other. byFile means that
// other sends requests to another process: walks and page-ins of shared memory are then made in the
// file behind v, which is faster.
func NewShared(v View, other Space, byFile bool) Space { return &shared{other, v, byFile} }

// Start implements Space.
func (s *shared) Start(op *Op, now int64, mapped bool) Step {
	switch {
	case !op.PagesIn() && mapped:
		op.stage = mapping
		return Mapped
	case op.PagesIn() && s.byFile:
		if _, n := s.view.Shares(op.VA, op.Pages, op.Write); n > 0 {
			op.stage = filling
			return Run
		}
	}
	return s.Space.Start(op, now, mapped)
}

// Run implements Space.
func (s *shared) Run(op *Op) {
	switch op.stage {
	case mapping:
		op.hit = s.access(op)
	case looking:
		op.Walked = proc.Walk{Absent: s.view.Look(op.VA, op.Pages)}
	case filling:
		there, new := s.view.PageIn(op.VA, op.Pages, op.Write)
		op.Paged = gup.Result{Resident: there}
		op.Paged.Since(there &^ new)
	case entering:
		if s.Space.Run(op); op.Err == nil {
			s.view.Enter(op.VA, op.Pages, ^(op.Walked.Absent | op.Walked.Denied))
		}
	default:
		s.Space.Run(op)
	}
}

// access performs a walk or a move through the view, and reports whether it has succeeded. If a walk
// has not, access widens its range to the window of pages that are looked up together.
func (s *shared) access(op *Op) bool {
	v := s.view
	switch {
	case op.Kind == Walk:
		op.Walked = proc.Walk{}
		if v.Has(op.VA, op.Pages, op.Write) {
			return true
		}
		if va, pages, ok := v.Window(op.VA, op.Pages, op.Write); ok {
			// Shared memory has no copy-on-write: a page that is present can also be written.
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
	case mapping:
		switch {
		case op.hit:
			return Over
		case op.Shared && s.byFile:
			op.stage = looking
			return Run
		case op.Shared:
			op.stage = entering
		default:
			op.stage = 0
		}
	case filling:
		if op.Paged.Resident&1 != 0 {
			return Over
		}
		op.stage = 0 // in swap, or nothing fills the page: the other Space pages it in
	case entering, looking:
		return Over
	default:
		return s.Space.Next(op, now)
	}
	return s.Space.Start(op, now, false)
}
