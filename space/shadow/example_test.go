//go:build linux

package shadow_test

import (
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/shadow"
)

// all is a device whose addresses are all usable.
type all struct{ mapped int }

func (d *all) Ranges() ([]shadow.Range, error) {
	return []shadow.Range{{First: 1 << 20, Last: 1<<40 - 1}}, nil
}
func (d *all) Kind() shadow.Kind                { return shadow.Files }
func (d *all) UnmapDMA(addr, size uint64) error { d.mapped--; return nil }
func (d *all) MapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error {
	d.mapped++
	return nil
}

// The tables of a new node are empty, in memory that is mapped for the device.
func ExampleNew() {
	d := new(all)
	m, err := shadow.New(shadow.Config{DMA: d, VABits: 48, Invalidate: func(int, device.VA, int) error { return nil }})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.Root(0) != 0, d.mapped > 0)
	fmt.Println(m.Close())
	// Output:
	// true true
	// <nil>
}
