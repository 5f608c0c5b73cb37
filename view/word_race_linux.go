//go:build race

package view

import "unsafe"

// storeWord is a plain store: the race detector makes atomic ones on a stack of its own, where a
// fault cannot become a panic. It runs where plain stores keep their order (x86).
//
//go:norace
func storeWord(b []byte, w uint64) { *(*uint64)(unsafe.Pointer(&b[:8][0])) = w }
