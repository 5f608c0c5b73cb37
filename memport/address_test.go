package memport

import (
	"unsafe"

	"github.com/exanet/pfd/device"
)

// address returns where memory lies.
func address(b []byte) device.VA { return device.VA(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
