//go:build linux

package daemon_test

import (
	"fmt"

	"github.com/exanet/pfd/daemon"
)

// The values that --pdid-range accepts.
func ExampleParsePDIDs() {
	first, last, err := daemon.ParsePDIDs("0x100-0x1ff")
	fmt.Println(first, last, err)
	// Output: 256 511 <nil>
}
