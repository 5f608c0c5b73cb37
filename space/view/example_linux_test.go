//go:build linux

package view_test

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/space/view"
)

// A process has shared memory and touched one page of it.
func ExampleView() {
	fd, err := rdma.MakeMemory(2*device.PageSize, device.PageSize)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer unix.Close(fd)
	if _, err := unix.Pwrite(fd, []byte("touched"), 0); err != nil {
		fmt.Println(err)
		return
	}
	v, err := view.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer v.Close()
	if err := v.Share(0x7000, 2*device.PageSize, fd, 0, true); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(v.Has(0x7000, 1, true)) // not entered
	v.Enter(0x7000, 2, 0b01)            // pagemap reports the first page as present
	b := make([]byte, 7)
	fmt.Println(v.ReadV([][]byte{b}, 0x7000), string(b), v.Has(0x8000, 1, false))
	// Output:
	// false
	// true touched false
}
