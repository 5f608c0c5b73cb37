package r5_test

import (
	"fmt"

	"github.com/exanet/pfd/soc/r5"
)

// Optimizations by name, as in pfd --firmware-options.
func ExampleParseOptions() {
	o, err := r5.ParseOptions("no-bypass,no-tickets")
	fmt.Println(o, o.NoBypass, o.NoCounters, err)
	// Output: no-bypass,no-tickets true false <nil>
}
