package gup

import (
	"errors"
	"math/bits"

	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/view"
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
	Beside   int    // pages that came in the same folios and were not asked for
}

// Entered sets Resident to those of the pages asked for that are entered in a view.
func (r *Result) Entered(f *view.Folios, entered uint64) {
	r.Resident = (entered & f.Asked) >> bits.TrailingZeros64(f.Asked)
}

// Came sets which pages the page-in has brought in.
func (r *Result) Came(f *view.Folios, came uint64) {
	first := bits.TrailingZeros64(f.Asked)
	r.New, r.There = (came&f.Asked)>>first, r.Resident&(f.There>>first)&1 != 0
	r.Beside = bits.OnesCount64(came &^ f.Asked)
}
