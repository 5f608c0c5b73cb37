//go:build linux

package emu_test

import (
	"context"
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
)

// Two running nodes, and a register of one, read on the owning goroutine.
func ExampleEngine() {
	e, err := emu.New(emu.Config{Nodes: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	read := make(chan uint32)
	e.Bus(1).Post(func() {
		v, err := e.Bus(1).Window(device.PL).Read32(device.PLID)
		if err != nil {
			fmt.Println(err)
		}
		read <- v
	})
	fmt.Printf("%#x\n", <-read)
	stop()
	fmt.Println(<-ended)
	// Output:
	// 0x4e415845
	// <nil>
}
