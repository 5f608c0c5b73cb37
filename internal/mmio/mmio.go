// Package mmio loads and stores memory-mapped registers, each with one access of its width.
package mmio

import (
	"errors"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"
)

// ErrFault reports that the kernel has unmapped the registers.
var ErrFault = errors.New("its registers do not respond")

// Load performs one load of size bytes (1, 2, 4 or 8) at an aligned offset of a mapping.
func Load(b []byte, off uint64, size int) (v uint64, err error) {
	defer faults(&err)()
	p := unsafe.Pointer(&b[off])
	switch size {
	case 8:
		return atomic.LoadUint64((*uint64)(p)), nil
	case 4:
		return uint64(atomic.LoadUint32((*uint32)(p))), nil
	case 2:
		return uint64(*(*uint16)(p)), nil
	}
	return uint64(*(*uint8)(p)), nil
}

// plain says that a plain store is ordered after earlier stores (Intel SDM 3A, 10.2.2). On
// amd64 an atomic store is an XCHG, which also reads the register and waits for the result.
const plain = runtime.GOARCH == "amd64"

// Store performs one store of size bytes, like Load.
func Store(b []byte, off uint64, size int, v uint64) (err error) {
	defer faults(&err)()
	p := unsafe.Pointer(&b[off])
	switch {
	case size == 8 && plain:
		*(*uint64)(p) = v
	case size == 8:
		atomic.StoreUint64((*uint64)(p), v)
	case size == 4 && plain:
		*(*uint32)(p) = uint32(v)
	case size == 4:
		atomic.StoreUint32((*uint32)(p), uint32(v))
	case size == 2:
		*(*uint16)(p) = uint16(v)
	default:
		*(*uint8)(p) = uint8(v)
	}
	return nil
}

// faults turns a SIGBUS into an error: the kernel unmaps the registers of a device that is
// removed or reset.
func faults(err *error) func() {
	old := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			*err = ErrFault
		}
	}
}
