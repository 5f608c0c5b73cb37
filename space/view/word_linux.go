//go:build !race

package view

import (
	"sync/atomic"
	"unsafe"
)

// storeWord stores an aligned word of at least 8 bytes atomically, after all earlier stores.
func storeWord(b []byte, w uint64) { atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[:8][0])), w) }

// loadWord loads an aligned word of 4 bytes atomically, after all earlier stores.
func loadWord(b []byte) uint32 { return atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[:4][0]))) }

// clearWord stores 0 to an aligned word of 4 bytes atomically.
func clearWord(b []byte) { atomic.StoreUint32((*uint32)(unsafe.Pointer(&b[:4][0])), 0) }
