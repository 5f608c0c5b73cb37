package memport

import (
	"errors"
	"fmt"
	"syscall"
)

type errnoError = syscall.Errno

var (
	// ErrHelper says that a helper failed for an unnamed reason, or that there is none.
	ErrHelper = errors.New("the process's memory helper failed")
	// ErrMemory says that a descriptor is not a port's memory.
	ErrMemory = errors.New("not a port's memory")
)

// Error is an error that a helper answered.
type Error struct {
	Err   error         // an error of package proc or gup, or ErrHelper
	Errno syscall.Errno // 0 if there is none
}

// Error returns the error as one line.
func (e *Error) Error() string {
	if e.Errno != 0 {
		return fmt.Sprintf("%v (%v)", e.Err, e.Errno)
	}
	return e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() []error {
	if e.Errno != 0 {
		return []error{e.Err, e.Errno}
	}
	return []error{e.Err}
}
