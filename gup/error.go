package gup

import (
	"fmt"

	"github.com/exanet/pfd/device"
)

// Error is why a page could not be brought in: it wraps one of the errors of
// this package, an error of package proc or an errno.
type Error struct {
	VA    device.VA
	Write bool
	Err   error
}

// Error gives the error as one line.
func (e *Error) Error() string {
	access := "reading"
	if e.Write {
		access = "writing"
	}
	return fmt.Sprintf("page in %v for %s: %v", e.VA, access, e.Err)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }
