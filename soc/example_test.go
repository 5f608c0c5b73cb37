package soc_test

import (
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/wire"
)

// A node is a state machine: registers are loaded, and its requests are returned as actions.
func Example() {
	n := soc.New(soc.Config{ID: 3, VABits: 48, SVA: true, Epoch: 1, Pool: new(wire.Pool)})
	fmt.Printf("%#x\n", n.Load(device.PL, device.PLID, 4))
	actions := n.Step(1000, &soc.Event{Kind: soc.Tick}, nil)
	fmt.Println(n.ID(), len(actions))
	// Output:
	// 0x4e415845
	// 3 0
}
