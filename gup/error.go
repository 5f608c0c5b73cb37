package gup

import (
	"fmt"

	"github.com/exanet/pfd/device"
)

// Error says why a page could not be paged in: it wraps an error of this package or of package
// proc, or an errno.
type Error struct {
	VA    device.VA
	Write bool
	Err   error
}

// Error returns the error as one line.
func (e *Error) Error() string {
	access := "reading"
	if e.Write {
		access = "writing"
	}
	return fmt.Sprintf("page in %v for %s: %v", e.VA, access, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
