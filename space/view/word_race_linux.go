//go:build race

package view

import "unsafe"

// storeWord is a plain store: the race detector makes atomic ones on its own stack, where a fault
// cannot become a panic. It runs on x86, where plain stores keep their order.
//
//go:norace
func storeWord(b []byte, w uint64) { *(*uint64)(unsafe.Pointer(&b[:8][0])) = w }

//go:norace
func loadWord(b []byte) uint32 { return *(*uint32)(unsafe.Pointer(&b[:4][0])) }

//go:norace
func clearWord(b []byte) { *(*uint32)(unsafe.Pointer(&b[:4][0])) = 0 }
