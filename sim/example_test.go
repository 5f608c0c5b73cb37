package sim_test

import (
	"fmt"

	"github.com/exanet/pfd/sim"
)

// A write of a page that the target has not touched, on the board that the papers measured.
func ExampleCosts_Write() {
	o, err := sim.Board().Write(sim.Trial{Size: 4096, Dst: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(o.Faults, "fault,", o.Retransmissions, "block sent once more")
	// Output:
	// 1 fault, 1 block sent once more
}
