package fifo_test

import (
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/fifo"
)

// A fault is pushed, peeked at and popped.
func Example() {
	var f fifo.FIFO
	e := device.FaultEntry{Source: 1, Transaction: 12, Sequence: 34, PDID: 7, Page: 0x7f0000001}
	fmt.Println(f.Push(e, 0), f.Level())
	head, _, ok := f.Peek(0)
	fmt.Println(head.VA(), ok)
	f.Pop()
	fmt.Println(f.Level())
	// Output:
	// 0 1
	// 0x7f0000001000 true
	// 0
}
