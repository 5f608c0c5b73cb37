// Package space is the interface to the memory of a process. A walk, a move or a page-in is an
// operation (Op). A step of an operation may sleep in the kernel, or wait for the answer of another
// process, and must not delay the memory of other processes meanwhile. So a Space has no goroutine:
// it returns the next Step of an operation, and the machine that owns the Space decides on which
// thread that step is made.
//
// The kinds of Space are:
//   - NewDirect: system calls of this process
//   - NewHelper: requests to a helper process that has the rights of the memory's owner
//   - NewShared: a mapping of the memory that the process shares, in front of another Space
//   - NewAsked: the process itself pages in; another Space does the other operations
//
// docs/papers.md lists the papers that comments cite by number.
package space

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/view"
)

// Kind is the kind of an operation.
type Kind uint8

// The kinds.
const (
	Walk   Kind = iota + 1 // find out which pages can be accessed, like proc.Process.Walk
	Move                   // copy bytes from or to the memory
	Words                  // write two words of eight bytes, the second after the first (001 §2.3.3.2)
	PageIn                 // make pages resident, like gup.Pager.PageIn
	Remap                  // map one page for the device again: it is resident, but the device's accesses fail
)

// Op is an operation. It belongs to the Space from Start until it is over.
type Op struct {
	Kind  Kind
	Write bool
	// VA and Pages are the range of a Walk, PageIn or Remap, 1 to 64 pages. A Walk may cover a
	// larger range than requested; it then sets VA and Pages to the covered range.
	VA    device.VA
	Pages int
	Bufs  [][]byte // of Move and Words: the bytes to write to VA, or the space for those read from it

	// The results. Each is valid for the named kinds, when the operation is over.
	Walked proc.Walk  // Walk
	Moved  int        // Move and Words: bytes
	Paged  gup.Result // PageIn and Remap
	Err    error      // Walk, Move and Words
	Shared bool       // Walk: the process shares the memory

	// Started and Ended are the times of a page-in by Now, which any goroutine may call. If Now is
	// nil they are not set.
	Started, Ended int64
	Now            func() int64
	// Done is called by the machine on the owning goroutine when a page-in is over.
	Done func()
	// Call is for the machine's use.
	Call any

	stage  stage
	hit    bool        // NewShared: the mapping had the pages
	folios view.Folios // NewShared: of a page-in, if a helper touches them
	asked  any         // NewAsked: the question
}

// stage is the progress of an operation in NewShared.
type stage uint8

// PagesIn reports whether the operation pages in.
func (op *Op) PagesIn() bool { return op.Kind == PageIn || op.Kind == Remap }

// Failure returns why the operation failed, nil if it did not.
func (op *Op) Failure() error {
	if op.PagesIn() {
		return op.Paged.Err
	}
	return op.Err
}

// Fail ends the operation with an error.
func (op *Op) Fail(err error) {
	if op.PagesIn() {
		op.Paged = gup.Result{Err: &gup.Error{VA: op.VA, Write: op.Write, Err: err}}
		return
	}
	op.Err = err
}

// Start records the start of a page-in, unless it has started before.
func (op *Op) Start() {
	if op.Now != nil && op.Started == 0 {
		op.Started = op.Now()
	}
}

// End records the end of a page-in.
func (op *Op) End() {
	if op.Now != nil {
		op.Ended = op.Now()
	}
}

// Again resets the operation for another Start with other parameters. It must not be used for a
// page-in.
func (op *Op) Again(k Kind, write bool, va device.VA, pages int, bufs [][]byte) {
	op.Kind, op.Write, op.VA, op.Pages, op.Bufs = k, write, va, pages, bufs
	op.Walked, op.Moved, op.Err, op.Shared, op.stage, op.hit = proc.Walk{}, 0, nil, false, 0, false
}

// Step is the next step of an operation.
type Step uint8

// The steps. Run, Brief, Mapped and Apart all require a call of Space.Run.
const (
	Over   Step = iota // none: the results are valid
	Run                // may sleep in the kernel
	Brief              // takes microseconds, even if the operation is a long page-in
	Mapped             // short, but accesses memory that another process maps, too, and can make sleep
	Apart              // is known to sleep: needs a thread of its own
	Wait               // another process must answer; Poll finds the answer
)

// Space is a process's memory. Run may be called on any goroutine, for several operations at a
// time; the other methods are called on the goroutine that owns the Space.
type Space interface {
	// Start starts an operation and returns its first step. now is in ns. mapped permits Mapped.
	Start(op *Op, now int64, mapped bool) Step
	// Run makes the step that Start, Next or Poll has returned. It uses no state that the other
	// methods change.
	Run(op *Op)
	// Next returns the step that follows a Run.
	Next(op *Op, now int64) Step

	// Poll calls next, with the next step, for each operation whose Wait is over, and reports
	// whether there were any. next may start operations.
	Poll(now int64, next func(*Op, Step)) bool
	// Pending reports whether an answer has arrived that Poll has not taken.
	Pending() bool
	// Due returns the time at which Poll must be called even if nothing is pending; 0: never. It
	// may wake the process that must answer.
	Due(now int64) int64
	// Asks reports whether an operation waits for the process itself, which announces its answer
	// by a kick.
	Asks() bool
	// SetAsleep records whether the owner sleeps: an answer must then wake it.
	SetAsleep(asleep bool)
	// Close drops all operations that wait; their results never come.
	Close()
}

// Prompt has the methods, but Start and Run, of a Space whose operations never return Wait. Another
// Space embeds it for those that it need not change.
type Prompt struct{}

// Next implements Space.
func (Prompt) Next(*Op, int64) Step { return Over }

// Poll implements Space.
func (Prompt) Poll(int64, func(*Op, Step)) bool { return false }

// Pending implements Space.
func (Prompt) Pending() bool { return false }

// Due implements Space.
func (Prompt) Due(int64) int64 { return 0 }

// Asks implements Space.
func (Prompt) Asks() bool { return false }

// SetAsleep implements Space.
func (Prompt) SetAsleep(bool) {}

// Close implements Space.
func (Prompt) Close() {}

// Do performs an operation on the calling goroutine. The operations of the Space must never return
// Wait, at which Do returns without results.
func Do(s Space, op *Op) {
	for step := s.Start(op, 0, false); step != Over && step != Wait; step = s.Next(op, 0) {
		s.Run(op)
	}
}

// Machine is the part of a node's machine by which a driver pages in.
type Machine interface {
	// PageIn starts an operation that pages in memory of the process that is attached to a slot. It
	// is called on the owning goroutine and does not wait; op.Done is called there later. long
	// means that the page-in takes tens of microseconds or waits for the process, and should use
	// another CPU. A long operation and one that is not may run concurrently.
	PageIn(slot int, op *Op, long bool)
}
