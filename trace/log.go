package trace

import "encoding/binary"

// Batch is how many records are shown together: they share the cost of one probe hit. Defined
// by this project.
const Batch = 32

// mark follows the counter: "exanet" and a version, so that a tracer can verify the place
// before it attaches.
const mark = 0x0001_74656e617865

// Log collects records until they are shown. It is not safe for concurrent use.
type Log struct {
	// Fabric goes into each record; it must be set before the first Add. 0: a device that shows
	// no blocks.
	Fabric uint64
	n      int
	batch  [Batch]Record
}

// Add appends a record, and shows the batch when it is full. Callers should make records only
// if On returns true.
func (l *Log) Add(r *Record) {
	r.Fabric = l.Fabric
	l.batch[l.n] = *r
	if l.n++; l.n == Batch {
		l.Show()
	}
}

// Waiting returns the records that are not shown yet; the caller may complete them.
func (l *Log) Waiting() []Record { return l.batch[:l.n] }

// Show shows the waiting records, if any.
func (l *Log) Show() {
	if l.n > 0 {
		point(&l.batch[0], l.n)
		l.n = 0
	}
}

// Announce shows the waiting records, even if there are none, so that a tracer learns of this
// process.
func (l *Log) Announce() {
	point(&l.batch[0], l.n)
	l.n = 0
}

// Served returns the fabric of nodes that process pid serves to other processes.
func Served(pid int) uint64 { return 1<<63 | uint64(uint32(pid)) }

// Mark returns the eight bytes after the semaphore's counter.
func Mark() []byte { return binary.LittleEndian.AppendUint64(nil, mark) }
