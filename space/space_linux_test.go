package space_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/view"
)

// memory is a process's memory that records what is done with it.
type memory struct {
	log []string
	err error
}

func (m *memory) Walk(device.VA, int, bool) (proc.Walk, error) {
	m.log = append(m.log, "walk")
	return proc.Walk{Absent: 2}, m.err
}

func (m *memory) ReadV(dst [][]byte, _ device.VA) (int, error) {
	m.log = append(m.log, "read")
	return len(dst[0]), m.err
}

func (m *memory) WriteV(src [][]byte, _ device.VA) (int, error) {
	m.log = append(m.log, "write")
	return len(src[0]), m.err
}

func (m *memory) PageIn(device.VA, int, bool) gup.Result {
	m.log = append(m.log, "page in")
	return gup.Result{Resident: 1}
}

// file is memory that a process shares: all is there, or in a window and not entered, or not shared.
type file struct {
	*memory
	there, window, filled bool
}

func (f *file) touch(what string) bool {
	f.log = append(f.log, what)
	return f.there
}

func (f *file) Has(device.VA, int, bool) bool     { return f.touch("has") }
func (f *file) ReadV([][]byte, device.VA) bool    { return f.touch("load") }
func (f *file) WriteV([][]byte, device.VA) bool   { return f.touch("store") }
func (f *file) WriteWords([]byte, device.VA) bool { return f.touch("words") }
func (f *file) Shares(va device.VA, n int, _ bool) (device.VA, int) {
	if f.window {
		return va, n
	}
	return 0, 0
}

func (f *file) Window(va device.VA, _ int, _ bool) (device.VA, int, bool) {
	return va &^ 0xffff, 16, f.window
}

func (f *file) Enter(device.VA, int, uint64) uint64 {
	f.log = append(f.log, "enter")
	return 1
}

func (f *file) Folios(device.VA, int, bool) (view.Folios, bool) { return view.Folios{}, false }

func (f *file) EndFolios(*view.Folios) (came uint64) { return 0 }

func (f *file) InFile(device.VA, int) (there uint64, folios bool) { return 0, false }

func (f *file) Look(device.VA, int) uint64 {
	f.log = append(f.log, "look")
	return 4
}

func (f *file) PageIn(device.VA, int, bool) (entered, filled uint64) {
	f.log = append(f.log, "fill")
	if f.filled {
		return 1, 1
	}
	return 0, 0
}

// do does an operation as a machine that may touch, and returns the steps.
func do(s space.Space, op *space.Op, touch bool) (steps []space.Step) {
	for step := s.Start(op, 0, touch); step != space.Over; step = s.Next(op, 0) {
		steps = append(steps, step)
		s.Run(op)
	}
	return steps
}

// TestShared: memory that is entered in the view is touched; a page that is not entered is looked up in the
// process's table or, if that must be asked for, in the file; other memory is not the view's.
func TestShared(t *testing.T) {
	run, touch := space.Run, space.Mapped
	for _, tt := range []struct {
		name             string
		kind             space.Kind
		write            bool
		file             file
		byFile, mayTouch bool
		steps            []space.Step
		log              []string
		absent           uint64
		shared           bool
	}{
		{"walk there", space.Walk, true, file{there: true, window: true}, false, true, []space.Step{touch}, []string{"has"}, 0, false},
		{"walk not entered", space.Walk, true, file{window: true}, false, true, []space.Step{touch, run}, []string{"has", "walk", "enter"}, 2, true},
		{"walk not entered, by the file", space.Walk, true, file{window: true}, true, true, []space.Step{touch, run}, []string{"has", "look"}, 4, true},
		{"walk not shared", space.Walk, true, file{}, true, true, []space.Step{touch, run}, []string{"has", "walk"}, 2, false},
		{"walk without a touch", space.Walk, true, file{there: true, window: true}, true, false, []space.Step{run}, []string{"walk"}, 2, false},
		{"write there", space.Move, true, file{there: true}, false, true, []space.Step{touch}, []string{"store"}, 0, false},
		{"write elsewhere", space.Move, true, file{}, false, true, []space.Step{touch, run}, []string{"store", "write"}, 0, false},
		{"read there", space.Move, false, file{there: true}, false, true, []space.Step{touch}, []string{"load"}, 0, false},
		{"words elsewhere", space.Words, true, file{}, false, true, []space.Step{touch, run}, []string{"words", "write", "write"}, 0, false},
		{"page-in by the pager", space.PageIn, true, file{window: true}, false, true, []space.Step{run}, []string{"page in"}, 0, false},
		{"page-in by the file", space.PageIn, true, file{window: true, filled: true}, true, true, []space.Step{run}, []string{"fill"}, 0, false},
		{"page-in that the file cannot fill", space.PageIn, true, file{window: true}, true, true, []space.Step{run, run}, []string{"fill", "page in"}, 0, false},
		{"page-in of other memory", space.PageIn, true, file{}, true, true, []space.Step{run}, []string{"page in"}, 0, false},
	} {
		m := &memory{}
		f := tt.file
		f.memory = m
		op := &space.Op{Kind: tt.kind, Write: tt.write, VA: 0x12345000, Pages: 1, Bufs: [][]byte{make([]byte, 16)}}
		steps := do(space.NewShared(&f, space.NewDirect(m, m), tt.byFile), op, tt.mayTouch)
		moved := 16
		if tt.kind != space.Move && tt.kind != space.Words {
			moved = 0
		}
		if !slices.Equal(steps, tt.steps) || !slices.Equal(m.log, tt.log) || op.Walked.Absent != tt.absent || op.Shared != tt.shared || op.Moved != moved {
			t.Errorf("%s: steps %v, %q, absent %#x, shared %v, %d bytes\nwant %v, %q, %#x, %v, %d",
				tt.name, steps, m.log, op.Walked.Absent, op.Shared, op.Moved, tt.steps, tt.log, tt.absent, tt.shared, moved)
		}
		if tt.kind == space.PageIn && op.Paged.Resident != 1 {
			t.Errorf("%s: %+v", tt.name, op.Paged)
		}
	}
}

// folios is a file that comes in by folios of 16 pages.
type folios struct {
	*file
	touch  uint64 // as Folios returns it
	comes  uint64 // pages that a touch brings in
	others uint64 // pages that another page-in counts
}

func (f *folios) Folios(va device.VA, _ int, _ bool) (view.Folios, bool) {
	return view.Folios{VA: va - 1<<12, Pages: 16, Asked: 6, Touch: f.touch}, true
}

func (f *folios) Enter(_ device.VA, pages int, _ uint64) (entered uint64) {
	f.log = append(f.log, fmt.Sprint("enter ", pages))
	if pages == 2 { // after a page-in of these alone
		f.comes |= 6
	}
	return f.comes
}

func (f *folios) EndFolios(*view.Folios) (came uint64) {
	f.log = append(f.log, "end")
	return f.comes &^ f.others
}

// elsewhere is a Space whose operations another process performs.
type elsewhere struct {
	space.Prompt
	*memory
	op *space.Op
}

func (e *elsewhere) Start(op *space.Op, _ int64, _ bool) space.Step {
	e.log = append(e.log, "ask")
	e.op = op
	return space.Wait
}

func (e *elsewhere) Run(*space.Op) {}

func (e *elsewhere) Poll(_ int64, next func(*space.Op, space.Step)) bool {
	if e.op == nil {
		return false
	}
	op := e.op
	e.op, op.Paged = nil, gup.Result{Resident: 3, New: 3}
	next(op, space.Over)
	return true
}

// TestSharedFolios: another process touches absent folios, whose pages are then entered. It pages in
// the pages themselves if they have not come.
func TestSharedFolios(t *testing.T) {
	for _, tt := range []struct {
		name                 string
		touch, comes, others uint64
		log                  []string
		want                 gup.Result
	}{
		{"the file has them", 0, 6, 0, []string{"enter 16", "end"}, gup.Result{Resident: 3, New: 3}},
		{"the file has the first", 0, 2, 0, []string{"enter 16", "end"}, gup.Result{Resident: 1, New: 1}},
		{"the file has none, but in swap", 0, 0, 0, []string{"enter 16", "ask", "enter 2", "end"}, gup.Result{Resident: 3, New: 3}},
		{"a folio comes", 2, 0xffff, 0, []string{"ask", "enter 16", "end"}, gup.Result{Resident: 3, New: 3, Beside: 14}},
		{"single pages come", 2, 2, 0, []string{"ask", "enter 16", "ask", "enter 2", "end"}, gup.Result{Resident: 3, New: 3}},
		{"another page-in counts one", 2, 2, 4, []string{"ask", "enter 16", "ask", "enter 2", "end"}, gup.Result{Resident: 3, New: 1}},
	} {
		m := &memory{}
		s := space.NewShared(&folios{&file{memory: m, window: true}, tt.touch, tt.comes, tt.others}, &elsewhere{memory: m}, true)
		op := &space.Op{Kind: space.PageIn, Write: true, VA: 0x12345000, Pages: 2}
		over := false
		next := func(op *space.Op, step space.Step) {
			for ; step != space.Over && step != space.Wait; step = s.Next(op, 0) {
				s.Run(op)
			}
			over = step == space.Over
		}
		for next(op, s.Start(op, 0, false)); !over && s.Poll(0, next); {
		}
		if !over || !slices.Equal(m.log, tt.log) || op.Paged != tt.want {
			t.Errorf("%s: over %v, %q, %+v, want %q, %+v", tt.name, over, m.log, op.Paged, tt.log, tt.want)
		}
	}
}

// TestFailures: a move that fails says so, a page-in without a pager ends with ErrGone.
func TestFailures(t *testing.T) {
	m := &memory{err: proc.ErrGone}
	s := space.NewDirect(m, nil)
	for _, k := range []space.Kind{space.Walk, space.Move, space.Words, space.PageIn, space.Remap} {
		op := &space.Op{Kind: k, Write: true, Pages: 1, Bufs: [][]byte{make([]byte, 16)}}
		if space.Do(s, op); !errors.Is(op.Failure(), proc.ErrGone) {
			t.Errorf("kind %d: %v, want ErrGone", k, op.Failure())
		}
	}
}

// answering is a process that is asked to page in.
type answering struct {
	asked, served uint32
	present       bool
	err           error
}

func (a *answering) Mapping(device.VA) (proc.Mapping, error) {
	return proc.Mapping{End: 1 << 40, Read: true, Write: true}, a.err
}

func (a *answering) Pagemap(_ device.VA, dst []proc.Entry) (int, error) {
	for i := range dst {
		if dst[i] = 0; a.present {
			dst[i] = 1<<63 | 1<<56 // present, mapped by this process alone (pagemap.rst)
		}
	}
	return len(dst), nil
}

func (a *answering) InFile(device.VA) error                  { return nil }
func (a *answering) PagedIn(device.VA, proc.Entry)           {}
func (a *answering) Served() uint32                          { return a.served }
func (a *answering) ServedError() uint32                     { return 0 }
func (a *answering) WaitServed(uint32, time.Duration)        {}
func (a *answering) ask(netlink.Fault) (n uint32, err error) { a.asked++; return a.asked, nil }

// TestAsked: the owner polls for the answer for a millisecond; then a thread waits for it.
func TestAsked(t *testing.T) {
	const ms = int64(time.Millisecond)
	a := &answering{}
	m := &memory{}
	s := space.NewAsked(space.Process{Looks: a, Ask: a.ask, Answers: a}, space.NewDirect(m, m), true)
	begin := func() *space.Op {
		t.Helper()
		op := &space.Op{Kind: space.PageIn, VA: 0x1000, Pages: 2, Write: true}
		if step := s.Start(op, 0, true); step != space.Brief {
			t.Fatalf("step %d, want the question", step)
		}
		if s.Run(op); s.Next(op, 5*ms) != space.Wait || !s.Asks() || s.Pending() || s.Due(5*ms) != 6*ms+1 {
			t.Fatal("the answer is not awaited")
		}
		return op
	}
	poll := func(now int64, want *space.Op, step space.Step) {
		t.Helper()
		var got *space.Op
		any := s.Poll(now, func(op *space.Op, s space.Step) {
			if got = op; s != step {
				t.Errorf("step %d, want %d", s, step)
			}
		})
		if any != (want != nil) || got != want {
			t.Errorf("at %d: polled %v, %p, want %p", now, any, got, want)
		}
	}
	op := begin()
	poll(6*ms, nil, 0)
	a.served, a.present = a.asked, true
	if !s.Pending() {
		t.Error("the answer is not noticed")
	}
	poll(6*ms, op, space.Brief)
	if s.Run(op); s.Next(op, 6*ms) != space.Over || op.Paged.Resident != 3 || op.Paged.New != 3 || s.Asks() {
		t.Errorf("%+v, want two new pages", op.Paged)
	}
	a.present = false
	op = begin()
	poll(6*ms+1, op, space.Apart)
	if s.Run(op); s.Next(op, 0) != space.Over || !errors.Is(op.Paged.Err, gup.ErrUnanswered) {
		t.Errorf("%+v, want ErrUnanswered", op.Paged)
	}
	begin()
	if s.Close(); s.Asks() || s.Due(0) != 0 {
		t.Error("a closed space waits still")
	}
	if space.Do(s, &space.Op{Kind: space.Walk, Pages: 1}); !slices.Equal(m.log, []string{"walk"}) {
		t.Errorf("%q, want the other space's walk", m.log)
	}
	a.err = proc.ErrGone
	gone := space.Op{Kind: space.PageIn, Pages: 1}
	if space.Do(s, &gone); !errors.Is(gone.Paged.Err, proc.ErrGone) {
		t.Errorf("%+v, want ErrGone", gone.Paged)
	}
}
