package trace

import "encoding/binary"

// Batch is how many records are shown together (ours): the probe's price is one for
// all of them.
const Batch = 32

// mark stands behind the counter: "exanet" and a version, so that what was found can be
// checked before anything is attached.
const mark = 0x0001_74656e617865

// Log collects records until they are shown. It belongs to one goroutine.
type Log struct {
	// Fabric goes into each record; set before the first Add. 0: a device that shows no
	// blocks.
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
		point(&l.batch[0], l.n)
		l.n = 0
	}
}

// Announce shows what waits, be it nothing: so that a tracer knows of this process.
func (l *Log) Announce() {
	point(&l.batch[0], l.n)
	l.n = 0
}

// Served names the fabric of nodes that the process pid serves to others.
func Served(pid int) uint64 { return 1<<63 | uint64(uint32(pid)) }

// Mark gives the eight bytes behind the semaphore's counter.
func Mark() []byte { return binary.LittleEndian.AppendUint64(nil, mark) }
