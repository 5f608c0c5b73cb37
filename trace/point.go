package trace

import "sync/atomic"

// semaphore counts the tracers attached to the point: the kernel writes its first 16 bits (a
// uprobe's reference counter). It is initialized so that it lies in the part of the program
// that is mapped from the file, where the kernel finds it. It is global because a program has
// one point.
var semaphore = [2]uint64{0, mark}

// On reports whether a tracer is attached. It is safe for concurrent use.
func On() bool { return atomic.LoadUint64(&semaphore[0])&0xffff != 0 }

// point is where tracers attach: at a NOP, when the address of n records and n are in the
// registers of a C function's first two arguments.
//
//go:noescape
func point(records *Record, n int)
