//go:build linux

package guest_test

import (
	"fmt"

	"github.com/exanet/pfd/qemu/guest"
)

// The arguments that a guest's kernel passes to the program.
func Example() {
	fmt.Println(guest.InitArgs)
	// Output: [guest init]
}
