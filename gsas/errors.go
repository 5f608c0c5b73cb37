package gsas

import (
	"errors"
	"fmt"

	"github.com/exanet/pfd/device/atomics"
)

// Errors of operations. With all but ErrGone and those of a context nothing was changed.
var (
	// ErrProtection: the page belongs to another tree.
	ErrProtection = errors.New("the page belongs to another tree: an address is valid in the tree that has allocated it")
	// ErrAddress: the address is in no allocated page, or in no node's partition, or not aligned to the
	// size of the operation.
	ErrAddress = errors.New("no allocated page has the address, or it is not aligned to the operation's size")
	// ErrRoom: the user's quota is used, or the node has no room.
	ErrRoom = errors.New("no room: free pages, or have pfd's gsas-quota raised")
	// ErrPage: the kernel does not bring the page in.
	ErrPage = errors.New("the page cannot be brought in: pfd's log has the cause")
	// ErrBusy: the node has too many operations in flight.
	ErrBusy = errors.New("the node has too many operations in flight: try again later")
	// ErrGone: the node does not answer, or has lost its pages. The operation may have been done.
	ErrGone = errors.New("the node does not answer, or its pages are gone")
	// ErrRequest: the node does not know the operation.
	ErrRequest = errors.New("the node has no such operation: use a pfd of this release")
	// ErrClosed: the thread or the mapping was closed.
	ErrClosed = errors.New("the thread or the mapping is closed")
)

// statusErrors are the errors for the statuses that are final.
var statusErrors = map[atomics.Status]error{
	atomics.NoMemory: ErrPage, atomics.BadAddress: ErrAddress, atomics.NoRoom: ErrRoom, atomics.Denied: ErrProtection,
	atomics.BadRequest: ErrRequest, atomics.Busy: ErrBusy, atomics.Gone: ErrGone,
}

// Error is the error of an operation.
type Error struct {
	Op      string // such as "fetch_add"
	Address Address
	Err     error // matches one of the errors above, or a context's
}

// Error returns the error in words.
func (e *Error) Error() string { return fmt.Sprintf("%s at %v: %v", e.Op, e.Address, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
