package space

import (
	"math/bits"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/view"
)

// View is memory that a process shares, as pfd maps it; *view.View implements it.
type View interface {
	Has(va device.VA, pages int, write bool) bool
	ReadV(dst [][]byte, va device.VA) bool
	WriteV(src [][]byte, va device.VA) bool
	WriteWords(words []byte, va device.VA) bool
	Window(va device.VA, pages int, write bool) (at device.VA, n int, ok bool)
	Shares(va device.VA, pages int, write bool) (start device.VA, n int)
	Folios(va device.VA, pages int, write bool) (f view.Folios, ok bool)
	EndFolios(f *view.Folios) (came uint64)
	InFile(va device.VA, pages int) (there uint64, folios bool)
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
	touching                  // touch of absent folios by the other Space, then a step that enters them
	singly                    // page-in of the pages that have not come by the other Space, then such a step
)

type shared struct {
	Space // of memory that is not shared, or not entered in the view
	view  View
	// byFile means that walks and page-ins of shared memory use the file, not the other Space.
	byFile bool

	next   func(*Op, Step) // of the Poll in progress
	polled func(*Op, Step) // calls next, so that Poll allocates nothing
}

// NewShared returns a Space that accesses the memory that a process shares through v, without system
// calls, as far as its pages are entered in v. All other memory is left to other. byFile means that
// other sends requests to another process: walks and page-ins of shared memory are then made in the
// file behind v, which is faster.
func NewShared(v View, other Space, byFile bool) Space {
	s := &shared{Space: other, view: v, byFile: byFile}
	s.polled = func(op *Op, step Step) { s.next(op, enters(op, step)) }
	return s
}

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
		var ok bool
		if op.folios, ok = s.view.Folios(op.VA, op.Pages, op.Write); ok {
			if op.Paged = (gup.Result{}); op.folios.Touch == 0 {
				s.came(op)
			}
			return
		}
		there, new := s.view.PageIn(op.VA, op.Pages, op.Write)
		op.Paged = gup.Result{Resident: there}
		op.Paged.Since(there &^ new)
	case touching, singly:
		s.came(op)
	case entering:
		if s.Space.Run(op); op.Err != nil {
			return
		}
		there := ^(op.Walked.Absent | op.Walked.Denied)
		if op.Walked.Absent != 0 {
			in, _ := s.view.InFile(op.VA, op.Pages)
			there |= in &^ op.Walked.Guard
		}
		op.Walked.Absent &^= s.view.Enter(op.VA, op.Pages, there)
	default:
		s.Space.Run(op)
	}
}

// came enters the pages of a page-in of folios, and ends it unless another follows.
func (s *shared) came(op *Op) {
	f := &op.folios
	if op.stage == singly {
		s.view.Enter(op.VA, bits.OnesCount64(f.Asked), op.Paged.Resident)
	} else {
		op.Paged.Entered(f, s.view.Enter(f.VA, f.Pages, ^uint64(0)))
		op.Paged.Err = nil // if a page has not come, the page-in that follows says why
		if !op.whole() {
			return
		}
	}
	op.Paged.Came(f, s.view.EndFolios(f))
}

// whole reports whether a page-in of folios that the file had, or that were touched, needs no other.
func (op *Op) whole() bool {
	f := &op.folios
	return op.Paged.Resident == f.Asked>>bits.TrailingZeros64(f.Asked) || op.stage == filling && op.Paged.Resident&1 != 0
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
		switch {
		case op.folios.Touch != 0:
			op.stage = touching
		case op.Paged.Resident&1 != 0:
			return Over
		default: // in swap, or nothing fills the page: the other Space pages it in
			op.again()
		}
	case touching:
		if op.whole() {
			return Over
		}
		op.again() // they came one by one, or a page cannot be touched
	case entering, looking, singly:
		return Over
	default:
		return s.Space.Next(op, now)
	}
	return enters(op, s.Space.Start(op, now, false))
}

// again makes the other Space page in what has not come.
func (op *Op) again() {
	op.stage, op.folios.Touch = 0, 0
	if op.folios.Pages > 0 {
		op.stage = singly
	}
}

// enters returns the step that follows: pages of folios are entered.
func enters(op *Op, step Step) Step {
	if (op.stage == touching || op.stage == singly) && step == Over {
		return Run
	}
	return step
}

// Poll implements Space.
func (s *shared) Poll(now int64, next func(*Op, Step)) bool {
	if !s.byFile {
		return s.Space.Poll(now, next)
	}
	s.next = next
	return s.Space.Poll(now, s.polled)
}
