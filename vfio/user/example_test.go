//go:build linux

package user_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/exanet/pfd/vfio/user"
)

// adder is a device with one register, which adds up the values that are written to it.
type adder struct{ sum uint64 }

func (a *adder) Read(bar int, offset uint64, size int) uint64     { return a.sum }
func (a *adder) Write(bar int, offset uint64, size int, v uint64) { a.sum += v }
func (a *adder) Reset(user.ResetKind)                             { a.sum = 0 }

// A PCI device behind a socket, and its driver.
func Example() {
	dir, err := os.MkdirTemp("", "exanet")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "device")
	s, err := user.New(user.Config{Identity: user.Identity{Vendor: 0x1234, Device: 1}, BARs: [6]user.BAR{{Size: 4096}}, MSIX: user.MSIX{Vectors: 1, Table: 1024, PBA: 2048}}, new(adder))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	listening, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.Serve(ctx, path, func() { close(listening) }) }()
	<-listening
	c, err := user.Dial(ctx, path, user.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := c.SetCommand(user.CommandMemory); err != nil {
		fmt.Println(err)
	}
	for _, v := range []uint64{40, 2} {
		if err := c.Write(user.RegionBAR0, 0, 8, v); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(c.Read(user.RegionBAR0, 0, 8))
	c.Close()
	stop()
	<-ended
	// Output: 42 <nil>
}
