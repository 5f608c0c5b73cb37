package gup

import (
	"errors"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/proc"
)

// MaxPages is how many pages one PageIn brings in at most: a bit each. The
// kernel would take 1024 in one call.
const MaxPages = proc.MaxPages

// Why a page-in brought nothing. All but ErrNotResident, ErrNoFilePage, ErrHangs and
// ErrUnanswered are
// final: the access cannot succeed as things stand, and the transfer is to be
// failed.
var (
	// ErrUnmapped says that nothing is mapped there, or a guard page.
	ErrUnmapped = proc.ErrUnmapped
	// ErrDenied says that the mapping does not permit the access.
	ErrDenied = proc.ErrDenied
	// ErrGone says that the process, or the address space that it had when it
	// was attached, is gone.
	ErrGone = proc.ErrGone
	// ErrPermission says that pfd has no right over the process.
	ErrPermission = proc.ErrPermission
	// ErrPastEnd says that the file behind the mapping ends before the page: the
	// process itself would get SIGBUS.
	ErrPastEnd = proc.ErrPastEnd
	// ErrNoFilePage says that the kernel gives no page of the file behind the
	// mapping, and that nobody may look how long that file is. It may pass.
	ErrNoFilePage = errors.New("the kernel gives no page of the file behind the mapping: the file ends before it, its file system is full, or it cannot be read")
	// ErrNotResident says that the mapping permits the access and the kernel
	// brought nothing in: out of memory, a full file system, an input error, or the
	// mapping is changing. Trying again may help.
	ErrNotResident = errors.New("the kernel did not bring the page in: memory short, its file system full, or an input error")
	// ErrNotShared says that the process does not share the memory with a device that
	// has tables of pfd's own.
	ErrNotShared = errors.New("the memory is not shared with the device, which reaches no other: " +
		"take it from rdma.Alloc or exanet_alloc, or share a memfd (Endpoint.Share, exanet_share)")
	// ErrUnmappable says that the page is there and cannot be mapped for a device that
	// has tables of pfd's own.
	ErrUnmappable = errors.New("the page cannot be mapped for the device")
)

// Kind is what kind of fault the first page had.
type Kind uint8

// The kinds (spec/faultpath.md, "What a fault may turn out to be").
const (
	Minor      Kind = iota // not present, and no device was needed
	Major                  // not present, and read from a device: swap or a file
	Permission             // present, and to be copied before it can be written
	Kinds
)

var kindNames = [Kinds]string{"minor", "major", "permission"}

// String gives the kind's name, as records and metrics have it.
func (k Kind) String() string {
	if k >= Kinds {
		return "kind?"
	}
	return kindNames[k]
}

// Since tells what has changed since the pages of was were ready.
func (r *Result) Since(was uint64) {
	r.New, r.There = r.Resident&^was, r.Resident&was&1 != 0
}

// Result is what a page-in did.
type Result struct {
	Resident uint64 // bit i: page i is there now, and permits the access
	New      uint64 // bit i: and that was not so before: absent, or to be copied
	There    bool   // of page 0 it was so before: nothing was to be done
	Kind     Kind   // of the first page
	Err      error  // why the first page is not resident; nil if it is
}

// Call is a device.Call that pages in. A machine that reaches a process's memory
// in another way than by running calls asks it for what, and hands the result
// over before it calls Done.
type Call interface {
	// PageIn returns what PageIn of a Pager takes; false where the call is to be
	// run like any other.
	PageIn() (va device.VA, pages int, write, ok bool)
	// Paged takes the result.
	Paged(Result)
}

// Refuser is a device.Call that takes an error in place of being run: the machine has no
// thread for it. Done follows.
type Refuser interface {
	Refuse(error)
}

// Asked is a device.Call that may ask a process to page in. A machine that looks for the
// answer beside its other work need not run it, and wait, elsewhere.
type Asked interface {
	// Ask asks, without waiting for the answer; false where the call is one that does
	// not ask: it is to be run. After it Run takes the answer.
	Ask() bool
	// Answered tells whether Run would not wait: once it does that stays so.
	Answered() bool
}

// Question is a page-in that a process was asked for.
type Question interface {
	Answered() bool // Wait returns at once
	Wait() Result
}
