//go:build linux

package qemu_test

import (
	"errors"
	"fmt"
	"os"

	"github.com/exanet/pfd/qemu"
)

// A directory without booted guests.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "exanet")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	_, err = qemu.Open(dir)
	fmt.Println(errors.Is(err, qemu.ErrNone))
	// Output: true
}
