package user

import (
	"errors"
	"fmt"
	"syscall"
)

// Errors of the package, for errors.Is.
var (
	// ErrGone reports that the peer of the connection has gone, or the connection was closed
	// because the peer violated the protocol. A client reconnects with Redial.
	ErrGone = errors.New("vfio-user peer gone")
	// ErrShort reports that a message has fewer bytes than its structure.
	ErrShort = errors.New("message too short")
	// ErrMalformed reports that a message contradicts the specification.
	ErrMalformed = errors.New("malformed message")
	// ErrTimeout reports that the peer did not answer in time. The connection is then closed,
	// since a late answer could be mistaken for the next one. It comes with ErrGone.
	ErrTimeout = errors.New("no answer in time")
	// ErrUnmapped reports that the client has not mapped a DMA address.
	ErrUnmapped = errors.New("DMA address not mapped")
	// ErrDenied reports that the client mapped a DMA address without the right that an access needs.
	ErrDenied = errors.New("DMA access not permitted by the mapping")
	// ErrBusMaster reports that the device may not access memory, because the client has bus
	// mastering off or the device is in D3hot.
	ErrBusMaster = errors.New("bus mastering is off")
	// ErrStranger reports that the server runs as a user that is neither root, nor the caller's
	// own, nor named by Options.Trust.
	ErrStranger = errors.New("another user serves the socket")
	// ErrLost reports that mapped memory could not be accessed. The peer made its file smaller,
	// or the system has no page for it.
	ErrLost = errors.New("mapped memory lost")
)

// Error is a peer's error reply to a command. It unwraps to the errno, so that errors.Is(err,
// syscall.EEXIST) works.
type Error struct {
	Command Command
	Errno   syscall.Errno // 0 where the peer gave no reason
}

// Error returns the error's text.
func (e *Error) Error() string {
	if e.Errno == 0 {
		return fmt.Sprintf("vfio-user %v refused by the peer, without a reason", e.Command)
	}
	return fmt.Sprintf("vfio-user %v refused by the peer: %v", e.Command, e.Errno)
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// refusal is an errno with the reason for the log. The reply carries only the errno (spec,
// "Header").
type refusal struct {
	errno  syscall.Errno
	reason string
}

func (r *refusal) Error() string { return r.reason }
func (r *refusal) Unwrap() error { return r.errno }

func refuse(errno syscall.Errno, format string, args ...any) error {
	return &refusal{errno, fmt.Sprintf(format, args...)}
}

// errnoOf returns the errno for the reply to a failed request.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != 0 {
		return errno
	}
	return syscall.EINVAL
}
