//go:build linux

package uffd_test

import (
	"errors"
	"fmt"

	"github.com/exanet/pfd/space/uffd"
)

// Open returns a userfaultfd if this machine lets its user have one.
func ExampleOpen() {
	fd, full, err := uffd.Open(false)
	switch {
	case errors.Is(err, uffd.ErrForbidden):
		fmt.Println(err) // says what to do
	case err == nil:
		fmt.Println("descriptor", fd, "serves system calls, too:", full)
	}
}
