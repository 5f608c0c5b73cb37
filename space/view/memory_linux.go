package view

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file holds the package's unsafe pointers.

// base returns the address of a mapping.
func base(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// mincore sets bit 0 of a byte for each page of b that is in memory.
func mincore(b, vec []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&vec[0])))
	if errno != 0 {
		return errno
	}
	return nil
}

// wordsAt returns the words from a byte of b on, which is aligned to 8. Fewer than four may lie in b.
func wordsAt(b []byte, at uint64) *[4]uint64 {
	return (*[4]uint64)(unsafe.Pointer(&b[at]))
}
