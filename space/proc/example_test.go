//go:build linux

package proc_test

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/space/proc"
)

// A page is absent until the process touches it; then it can be read.
func ExampleProcess_Walk() {
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
	b[0] = 1
	w, err := p.Walk(rdma.VAOf(b), 2, true)
	fmt.Printf("absent %b, %v\n", w.Absent, err)
	// Output: absent 10, <nil>
}
