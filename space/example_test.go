package space_test

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
)

// A machine that may sleep does operations one after the other.
func Example() {
	p, err := proc.OpenPID(os.Getpid())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	mem := space.NewDirect(p, gup.New(p))
	there := []byte("the bytes of a process")
	here := make([]byte, len(there))
	op := space.Op{Kind: space.Move, VA: device.VA(uintptr(unsafe.Pointer(&there[0]))), Bufs: [][]byte{here}}
	space.Do(mem, &op)
	fmt.Printf("%d bytes: %s\n", op.Moved, here)
	// Output: 22 bytes: the bytes of a process
}
