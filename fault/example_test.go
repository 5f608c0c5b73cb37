package fault_test

import (
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/fault/faulttest"
)

// A driver of a node made only of registers: vectors without a cause serve nothing.
func Example() {
	n := faulttest.New()
	d := fault.New(fault.Config{Bus: n, Now: func() int64 { return 0 }})
	n.Handler = d
	d.Interrupt(device.VectorFIFO)
	n.Run()
	fmt.Println(d.Stats().Total.PageIns, "page-ins, spurious:", d.Stats().Spurious)
	fmt.Println(d.Add(fault.Target{Slot: 0, PDID: 0}))
	// Output:
	// 0 page-ins, spurious: 1
	// bad fault target: slot 0: PDID 0 is never given out
}
