// Package mmio makes loads and stores of registers that are mapped: each is one
// access of its width.
package mmio

import (
	"errors"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"
)

// ErrFault says that the kernel has taken the registers away.
var ErrFault = errors.New("its registers do not answer")

// Load makes one load of size bytes, 1, 2, 4 or 8, at an aligned offset of a
// mapping.
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

// plain says that a store without sync/atomic follows the stores before it (Intel
// SDM 3A, 10.2.2). There the atomic one is an XCHG, which reads the register, too, and
// waits for that.
const plain = runtime.GOARCH == "amd64"

// Store makes one store.
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

// faults makes an error of a SIGBUS: the kernel takes the registers of a device
// away that is removed or reset.
func faults(err *error) func() {
	old := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			*err = ErrFault
		}
	}
}
