package device_test

import (
	"fmt"

	"github.com/exanet/pfd/device"
)

// A transfer as a process announces it, in the 64 bytes that the firmware reads.
func ExampleDescriptor() {
	d := device.Descriptor{Src: 0x7f0000001000, Dst: 0x7f0000002000, Size: 4096, DstNode: 1, DstPDID: 2}
	var b [device.DescriptorSize]byte
	if err := d.Encode(b[:]); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("% x\n", b[device.DescSrc:device.DescSrc+8])
	same, err := device.DecodeDescriptor(b[:])
	fmt.Println(same == d, err)
	// Output:
	// 00 10 00 00 00 7f 00 00
	// true <nil>
}

// An entry of the page-fault FIFO, as its four registers give it.
func ExampleFaultEntry() {
	e := device.FaultEntry{Source: 1, Transaction: 7, Sequence: 3, PDID: 2, Page: 0x7f0000001, Response: device.ResponseSlaveError}
	same, valid := device.DecodeFaultEntry(e.Words())
	fmt.Println(valid, same == e, same.VA())
	// Output:
	// true true 0x7f0000001000
}
