//go:build !race

package view

import (
	"sync/atomic"
	"unsafe"
)

// storeWord stores an aligned word of at least 8 bytes atomically, after all earlier stores.
func storeWord(b []byte, w uint64) { atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[:8][0])), w) }
