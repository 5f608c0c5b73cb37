//go:build race

package view

import "unsafe"

// storeWord is a plain store: the race detector makes atomic ones on its own stack, where a fault
// cannot become a panic. It runs on x86, where plain stores keep their order.
//
//go:norace
func storeWord(b []byte, w uint64) { *(*uint64)(unsafe.Pointer(&b[:8][0])) = w }
