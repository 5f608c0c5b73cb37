//go:build linux

package gup_test

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/space/proc"
)

// Two untouched pages are paged in without being touched.
func ExamplePager_PageIn() {
	p, err := proc.OpenPID(os.Getpid())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	b, err := unix.Mmap(-1, 0, 2*device.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer unix.Munmap(b)
	r := gup.New(p).PageIn(rdma.VAOf(b), 2, true)
	fmt.Printf("resident %b, new %b, %v, %v\n", r.Resident, r.New, r.Kind, r.Err)
	// Output: resident 11, new 11, minor, <nil>
}
