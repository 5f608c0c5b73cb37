package gup

import (
	"errors"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/proc"
)

// MaxPages is how many pages one PageIn covers at most: one bit each. The kernel would accept
// 1024 in one call.
const MaxPages = proc.MaxPages

// Why a page-in failed. ErrNotResident, ErrNoFilePage, ErrHangs and ErrUnanswered are temporary.
// The others are final: the access cannot succeed, and the transfer must fail.
var (
	// ErrUnmapped says that nothing is mapped there, or that it is a guard page.
	ErrUnmapped = proc.ErrUnmapped
	// ErrDenied says that the mapping does not permit the access.
	ErrDenied = proc.ErrDenied
	// ErrGone says that the address space of the attachment is gone.
	ErrGone = proc.ErrGone
	// ErrPermission says that pfd has no right over the process.
	ErrPermission = proc.ErrPermission
	// ErrPastEnd says that the mapped file ends before the page: the process itself would get
	// SIGBUS.
	ErrPastEnd = proc.ErrPastEnd
	// ErrNoFilePage says that the kernel has no page of the mapped file, and that pfd may not
	// look up the file's length. It may be temporary.
	ErrNoFilePage = errors.New("the kernel has no page of the file behind the mapping: the file ends before it, its file system is full, or it cannot be read")
	// ErrNotResident says that the mapping permits the access but the kernel did not page in: out
	// of memory, a full file system, an input error, or a mapping that is changing. A retry may
	// succeed.
	ErrNotResident = errors.New("the kernel did not page it in: out of memory, its file system full, or an input error")
	// ErrNotShared says that the process does not share the memory with a device that uses pfd's
	// own tables.
	ErrNotShared = errors.New("the memory is not shared with the device, which accesses shared memory only: " +
		"take it from rdma.Alloc or exanet_alloc, or share a memfd (Endpoint.Share, exanet_share)")
	// ErrUnmappable says that the page is resident and cannot be mapped for a device that uses
	// pfd's own tables.
	ErrUnmappable = errors.New("the page cannot be mapped for the device")
)

// Kind is the kind of the first page's fault.
type Kind uint8

// The kinds (spec/faultpath.md, "What a fault may turn out to be").
const (
	Minor      Kind = iota // not present, and no device was needed
	Major                  // not present, and read from a device: swap or a file
	Permission             // present, and must be copied before it can be written
	Kinds
)

var kindNames = [Kinds]string{"minor", "major", "permission"}

// String returns the kind's name in records and metrics.
func (k Kind) String() string {
	if k >= Kinds {
		return "kind?"
	}
	return kindNames[k]
}

// Since marks the pages of was, which were ready before, as not new.
func (r *Result) Since(was uint64) {
	r.New, r.There = r.Resident&^was, r.Resident&was&1 != 0
}

// Result is the result of a page-in.
type Result struct {
	Resident uint64 // bit i: page i is resident and permits the access
	New      uint64 // bit i: and it was absent, or had to be copied, before
	There    bool   // page 0 was ready before: there was nothing to do
	Kind     Kind   // of the first page
	Err      error  // why the first page is not resident; nil if it is
}

// Call is a device.Call that pages in. A machine that does not reach a process's memory by
// running calls asks for the arguments, pages in, and passes the result before it calls Done.
type Call interface {
	// PageIn returns the arguments for Pager.PageIn; ok is false if the call must be run like any
	// other.
	PageIn() (va device.VA, pages int, write, ok bool)
	// Paged takes the result.
	Paged(Result)
}

// Refuser is a device.Call that accepts an error instead of being run, when the machine has no
// thread for it. Done follows.
type Refuser interface {
	Refuse(error)
}

// Asked is a device.Call that may ask a process to page in. A machine that polls for the answer
// beside its other work need not run the call on another thread to wait.
type Asked interface {
	// Ask sends the request and does not wait for the answer. It returns false if the call sends
	// none and must be run. After Ask, Run takes the answer.
	Ask() bool
	// Answered reports whether Run would return without waiting. Once true, it stays true.
	Answered() bool
}

// Question is a request to a process to page in.
type Question interface {
	Answered() bool // Wait returns at once
	Wait() Result
}
