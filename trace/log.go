package trace

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// Batch is how many records are shown together (ours): the probe's price is one for
// all of them.
const Batch = 32

// semaphore counts who is attached to the point: the kernel writes its first 16 bits
// (a uprobe's reference counter). It has content, so that it lies in the part of the
// program that is mapped from the file, and the kernel finds it there. It is the
// point's, of which a program has one.
var semaphore = [2]uint64{0, mark}

// mark stands behind the counter: "exanet" and a version, so that what was found can be
// checked before anything is attached.
const mark = 0x0001_74656e617865

// On tells whether somebody looks. Any goroutine.
func On() bool { return atomic.LoadUint64(&semaphore[0])&0xffff != 0 }

// Log collects records until they are shown. It belongs to one goroutine.
type Log struct {
	// Fabric goes into each record; set before the first Add.
	Fabric uint64
	n      int
	batch  [Batch]Record
}

// Add keeps a record; it shows the batch when it is full. Callers make the record only
// where On.
func (l *Log) Add(r *Record) {
	r.Fabric = l.Fabric
	l.batch[l.n] = *r
	if l.n++; l.n == Batch {
		l.Show()
	}
}

// Waiting gives the records that wait to be shown; the caller may complete them.
func (l *Log) Waiting() []Record { return l.batch[:l.n] }

// Show shows what waits.
func (l *Log) Show() {
	if l.n > 0 {
		point(unsafe.Pointer(&l.batch[0]), l.n)
		l.n = 0
	}
}

// point is where tracers attach: at a NOP behind which the address of n records and n
// itself stand in the registers of a C function's first two arguments.
//
//go:noescape
func point(records unsafe.Pointer, n int)

// Mark gives the eight bytes behind the semaphore's counter.
func Mark() []byte { return binary.LittleEndian.AppendUint64(nil, mark) }
