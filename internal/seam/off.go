//go:build !faultpoints

package seam

import "syscall"

// Fail gives the error with which this call of a point is to fail, 0 not at all.
func Fail(Point) syscall.Errno { return 0 }
