package memport

import (
	"unsafe"

	"github.com/exanet/pfd/device"
)

// address returns the address of memory.
func address(b []byte) device.VA { return device.VA(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
