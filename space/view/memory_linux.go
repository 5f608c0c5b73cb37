package view

import "unsafe"

// This file holds the package's unsafe pointers.

// base returns the address of a mapping.
func base(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
