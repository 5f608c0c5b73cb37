package user

import (
	"errors"
	"fmt"
	"syscall"
)

// What can go wrong, matched by errors.Is.
var (
	// ErrGone says that the peer of the connection is not there any more, or
	// that the connection was closed because it could not be trusted. A client
	// reconnects with Redial.
	ErrGone = errors.New("vfio-user peer gone")
	// ErrShort says that a message has fewer bytes than its structure.
	ErrShort = errors.New("message too short")
	// ErrMalformed says that a message contradicts the specification.
	ErrMalformed = errors.New("malformed message")
	// ErrTimeout says that the peer did not answer in time. The connection is
	// closed then: a late answer could not be told from the next one. It comes
	// with ErrGone.
	ErrTimeout = errors.New("no answer in time")
	// ErrUnmapped says that a DMA address is not mapped by the client.
	ErrUnmapped = errors.New("DMA address not mapped")
	// ErrDenied says that the client mapped a DMA address without the right
	// that an access needs.
	ErrDenied = errors.New("DMA access not permitted by the mapping")
	// ErrBusMaster says that the client has bus mastering off (or the device in
	// D3hot): the device may not access memory.
	ErrBusMaster = errors.New("bus mastering is off")
	// ErrStranger says that a server is neither root's, nor the user's own, nor of
	// a user that Options.Trust names.
	ErrStranger = errors.New("another user serves the socket")
	// ErrMapRefused says that the server refused a DMA_MAP that nobody waited for
	// (Client.PostMapDMA). Each such error is a MapError.
	ErrMapRefused = errors.New("DMA_MAP refused")
	// ErrLost says that mapped memory could not be accessed: the peer made its
	// file smaller, or the system has no page for it.
	ErrLost = errors.New("mapped memory lost")
)

// Error is what a peer answered to a command. It unwraps to the errno, so that
// errors.Is(err, syscall.EEXIST) works.
type Error struct {
	Command Command
	Errno   syscall.Errno // 0 where the peer gave no reason
}

// Error gives the sentence.
func (e *Error) Error() string {
	if e.Errno == 0 {
		return fmt.Sprintf("vfio-user %v refused by the peer, without a reason", e.Command)
	}
	return fmt.Sprintf("vfio-user %v refused by the peer: %v", e.Command, e.Errno)
}

// Unwrap gives the errno.
func (e *Error) Unwrap() error { return e.Errno }

// MapError is a DMA_MAP that the server refused and nobody waited for. It matches
// ErrMapRefused, and by its Err the errno.
type MapError struct {
	Address, Size uint64
	Err           error
}

// Error gives the sentence.
func (e *MapError) Error() string {
	return fmt.Sprintf("vfio-user: map DMA %#x+%#x: %v", e.Address, e.Size, e.Err)
}

// Is matches ErrMapRefused.
func (e *MapError) Is(target error) bool { return target == ErrMapRefused }

// Unwrap gives what the server answered.
func (e *MapError) Unwrap() error { return e.Err }

// refusal is an errno with the reason for the log. The reply carries the errno
// only (spec, "Header").
type refusal struct {
	errno  syscall.Errno
	reason string
}

func (r *refusal) Error() string { return r.reason }
func (r *refusal) Unwrap() error { return r.errno }

func refuse(errno syscall.Errno, format string, args ...any) error {
	return &refusal{errno, fmt.Sprintf(format, args...)}
}

// errnoOf gives what the reply to a failed request says.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != 0 {
		return errno
	}
	return syscall.EINVAL
}
