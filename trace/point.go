package trace

import "sync/atomic"

// semaphore counts who is attached to the point: the kernel writes its first 16 bits
// (a uprobe's reference counter). It has content, so that it lies in the part of the
// program that is mapped from the file, and the kernel finds it there. It is the
// point's, of which a program has one.
var semaphore = [2]uint64{0, mark}

// On tells whether somebody looks. Any goroutine.
func On() bool { return atomic.LoadUint64(&semaphore[0])&0xffff != 0 }

// point is where tracers attach: at a NOP behind which the address of n records and n
// itself stand in the registers of a C function's first two arguments.
//
//go:noescape
func point(records *Record, n int)
