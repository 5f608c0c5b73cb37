package sim_test

import (
	"fmt"

	"github.com/exanet/pfd/sim"
)

// A scenario of the whole firmware and its driver: all its chance, with faults, losses and
// resets, comes from the seed.
func ExampleNewFabric() {
	f, err := sim.NewFabric(1, false)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(f.Run())
	// Output:
	// <nil>
}
