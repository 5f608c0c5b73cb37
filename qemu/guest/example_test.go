//go:build linux

package guest_test

import (
	"fmt"

	"github.com/exanet/pfd/qemu/guest"
)

// What the kernel of a guest starts, behind the program's name.
func Example() {
	fmt.Println(guest.InitArgs)
	// Output: [guest init]
}
