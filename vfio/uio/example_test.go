//go:build linux

package uio_test

import (
	"fmt"

	"github.com/exanet/pfd/vfio/uio"
)

// Devices are named as in /sys/class/uio, or by their PCI addresses.
func ExampleCheckName() {
	fmt.Println(uio.CheckName("uio0"))
	fmt.Println(uio.CheckName("../uio0") != nil)
	// Output:
	// <nil>
	// true
}
