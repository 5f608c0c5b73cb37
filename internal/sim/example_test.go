package sim_test

import (
	"fmt"

	"github.com/exanet/pfd/internal/sim"
)

// A write to an untouched page, on the board of the papers.
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
