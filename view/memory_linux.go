package view

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file holds the package's unsafe pointers.

// base gives the address of a mapping.
func base(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// mincore tells of each page of b whether its file has it in memory: bit 0 of a byte.
func mincore(b, there []byte) error {
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, base(b), uintptr(len(b)), base(there)); errno != 0 {
		return errno
	}
	return nil
}
