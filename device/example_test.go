package device_test

import (
	"fmt"

	"github.com/exanet/pfd/device"
)

// A transfer as a process announces it, in the eight words that the firmware reads.
func ExampleDescriptor() {
	d := device.Descriptor{Src: 0x7f0000001000, Dst: 0x7f0000002000, Size: 4096, DstNode: 1, DstPDID: 2}
	w := d.Words()
	fmt.Printf("%#x\n", w[device.DescSrc/8])
	fmt.Println(device.DescriptorOf(&w) == d)
	// Output:
	// 0x7f0000001000
	// true
}

// An entry of the page-fault FIFO, as read from its four registers.
func ExampleFaultEntry() {
	e := device.FaultEntry{Source: 1, Transaction: 7, Sequence: 3, PDID: 2, Page: 0x7f0000001, Response: device.ResponseSlaveError}
	same, valid := device.DecodeFaultEntry(e.Words())
	fmt.Println(valid, same == e, same.VA())
	// Output:
	// true true 0x7f0000001000
}
