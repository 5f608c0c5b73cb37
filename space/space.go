// Package space is the interface to the memory of a process. A walk, a move or a page-in is an
// operation: it is started, may have to be run where sleeping delays nobody else, may have to wait
// for an answer, and is then over. Every way to memory is a Space:
// NewDirect (the kernel's calls), NewHelper (a process with the rights of the owner), NewShared (a
// view of what the process shares, before another way), NewAsked (the process itself pages in). A
// Space has no goroutine: the machine that owns it decides where an operation runs.
//
// docs/papers.md lists the papers that comments cite by number.
package space

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/proc"
)

// Kind is the kind of an operation.
type Kind uint8

// The kinds.
const (
	Walk   Kind = iota + 1 // find out whether pages can be accessed: as proc.Process.Walk
	Move                   // move bytes
	Words                  // write two words of eight bytes, the second after the first (001 §2.3.3.2)
	PageIn                 // make pages resident: as gup.Pager.PageIn
	Remap                  // page in one page that the device cannot access though it is resident
)

// Op is an operation. It belongs to the Space from Start until it is over.
type Op struct {
	Kind  Kind
	Write bool
	// VA and Pages are the range of a Walk, PageIn or Remap, 1 to 64 pages. A Walk may cover more
	// than was asked for: they tell then what it has covered.
	VA    device.VA
	Pages int
	Bufs  [][]byte // of Move and Words: bytes to or from VA

	Walked proc.Walk  // of a Walk
	Moved  int        // of Move and Words: bytes
	Paged  gup.Result // of PageIn and Remap
	Err    error      // why a Walk, Move or Words failed
	Shared bool       // a Walk found that the process shares the memory

	// Started and Ended are when a page-in began and ended, by Now, which any goroutine may call;
	// nil: nobody wants to know.
	Started, Ended int64
	Now            func() int64
	// Done is called by the machine on the owning goroutine when a page-in is over.
	Done func()
	// Call is the machine's own record of the operation.
	Call any

	stage stage
	hit   bool // a touch was enough
	asked any  // the question to the process
}

// stage is how far an operation has come in the Space that handles it.
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

// Start records that a page-in begins, unless it has begun.
func (op *Op) Start() {
	if op.Now != nil && op.Started == 0 {
		op.Started = op.Now()
	}
}

// End records that a page-in ends.
func (op *Op) End() {
	if op.Now != nil {
		op.Ended = op.Now()
	}
}

// Again prepares the operation, which is no page-in, for another Start.
func (op *Op) Again(k Kind, write bool, va device.VA, pages int, bufs [][]byte) {
	op.Kind, op.Write, op.VA, op.Pages, op.Bufs = k, write, va, pages, bufs
	op.Walked, op.Moved, op.Err, op.Shared, op.stage, op.hit = proc.Walk{}, 0, nil, false, 0, false
}

// Step is the next step of an operation.
type Step uint8

// The steps.
const (
	Over  Step = iota // nothing: its results are valid
	Run               // Run, which may sleep in the kernel
	Brief             // Run, which takes microseconds even of an operation that is behind
	Touch             // Run, which accesses memory that another process maps and makes no system call
	Apart             // Run, which is known to sleep: on a thread of its own
	Wait              // the answer of another process, which Poll notices
)

// Space is a process's memory. Run may be called on any goroutine, for several operations at a
// time; the other methods are called on the goroutine that owns the Space.
type Space interface {
	// Start begins an operation. now is in ns. touch permits the step Touch.
	Start(op *Op, now int64, touch bool) Step
	// Run makes the step that Start, Next or Poll returned. It does not use state that the other
	// methods change.
	Run(op *Op)
	// Next returns the step after a Run.
	Next(op *Op, now int64) Step

	// Poll calls next for each operation that need not Wait any longer, and reports whether there
	// were any. next may start operations.
	Poll(now int64, next func(*Op, Step)) bool
	// Pending reports whether Poll would find any by an answer.
	Pending() bool
	// Due returns when Poll is to be called although nothing is pending, 0 never. It may wake
	// the process that is to answer.
	Due(now int64) int64
	// Asks reports whether an answer is awaited that the process itself announces by its kick.
	Asks() bool
	// SetAsleep records whether the owner sleeps, so that an answer must wake it.
	SetAsleep(asleep bool)
	// Close drops all operations that wait: their results never come. Later ones fail.
	Close()
}

// Prompt is embedded by a Space whose operations never wait.
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

// Do does an operation on the calling goroutine, in a Space whose operations never wait.
func Do(s Space, op *Op) {
	for step := s.Start(op, 0, false); step != Over && step != Wait; step = s.Next(op, 0) {
		s.Run(op)
	}
}

// Machine is a node's machine as a driver has it page in.
type Machine interface {
	// PageIn starts an operation that pages in memory of the process that is attached to a slot;
	// its Done is called on the owning goroutine. It is called there, too, and returns before that.
	// behind means that no block waits for it yet: it takes tens of microseconds and should run on
	// another CPU. One operation that is behind and one that is not may run concurrently.
	PageIn(slot int, op *Op, behind bool)
}
