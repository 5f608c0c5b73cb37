package hostile

import (
	"sync/atomic"
	"unsafe"
)

// putWord and getWord access eight bytes of a page that pfd also maps.
func putWord(b []byte, v uint64) { atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[0])), v) }

func getWord(b []byte) uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&b[0]))) }

func ptr(p *byte) uintptr { return uintptr(unsafe.Pointer(p)) }
