package link

import (
	"slices"
	"sync"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// Sizes of queues in bytes (defined by this project). A queue that reaches its size is full.
const (
	highSize  = 256 << 10
	bulkSize  = 1 << 20
	chunkSize = 64 << 10 // the most that a writer writes at once
	firstSize = 4 << 10  // of the first chunk of an empty queue
	keepChunk = 16       // chunks that a queue keeps for use again
)

// queue has the records that wait for the writer of one connection, in chunks. Its methods may be
// called on any goroutine. Only the writer calls take and written.
type queue struct {
	size int // bytes at which it is full

	mu     sync.Mutex
	filled sync.Cond
	open   bool
	cut    func(q *queue, f *wire.Frame) int // encodes a frame as datagrams; nil: as a record
	limit  int                               // of a datagram
	chunks [][]byte                          // those that wait; the last is being filled
	free   [][]byte
	// direct writes a chunk without waiting, and returns false if some of it is left, which the writer
	// must flush; nil: the writer writes all.
	direct  func([]byte) (all bool, err error)
	writing bool     // the writer has chunks
	sealed  bool     // the link is closed, or is being closed: new records wait for the next one
	last    [][]byte // with sealed: the writer's last chunks
	rest    bool     // direct has left something
	bytes   int      // in chunks, and in the writer's hands
	full    bool

	frames, octets, dropped uint64 // accepted frames, written bytes, frames that were refused or lost in chunks
	waiting                 uint64 // frames in chunks
}

func newQueue(size int) *queue {
	q := &queue{size: size}
	q.filled.L = &q.mu
	return q
}

// put is the result of adding to a queue.
type put uint8

const (
	putRefused put = iota // the queue is closed
	putNoRoom             // the queue has twice its size
	putDone
	putFull // done, and the queue has become full
)

// frame adds a frame.
func (q *queue) frame(f *wire.Frame) put {
	size := 0
	if q.cut == nil {
		if sound(f) {
			size = frameSize(f)
		}
	} else {
		size = len(f.Payload) + wire.MaxPacket
	}
	most := 2 * q.size
	if f.Kind == wire.Message && f.SrcPDID != device.PDIDFirmware {
		// Messages of processes may be lost (messages.md 6). A process that sends many must neither make
		// the link not ready nor take the place of acknowledgements.
		most = q.size / 2
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if size == 0 || !q.open || q.bytes+size > most {
		q.dropped++
		if !q.open {
			return putRefused
		}
		return putNoRoom
	}
	if q.cut != nil {
		size = q.cut(q, f)
	} else {
		c := q.room(size, firstSize)
		*c = appendFrame(*c, f, size)
	}
	q.frames++
	q.waiting++
	return q.added(size, q.bytes > chunkSize)
}

// control adds another record.
func (q *queue) control(kind int, content []byte) put {
	q.mu.Lock()
	defer q.mu.Unlock()
	size := headSize + len(content) + crcSize
	switch {
	case !q.open, q.sealed && kind != recordTold:
		return putRefused
	case q.bytes+size > 2*q.size:
		return putNoRoom
	}
	c := q.room(size, size) // all that an idle link sends
	*c = appendControl(*c, kind, content)
	return q.added(size, true)
}

// room returns the chunk that has room for n more bytes. The first one is made of the size first at least.
func (q *queue) room(n, first int) *[]byte {
	if i := len(q.chunks) - 1; i >= 0 && cap(q.chunks[i])-len(q.chunks[i]) >= n {
		return &q.chunks[i]
	}
	want := chunkSize
	if len(q.chunks) == 0 {
		want = max(n, first)
	}
	var c []byte
	for i, f := range q.free {
		if cap(f) >= want {
			last := len(q.free) - 1
			c, q.free[i] = f, q.free[last]
			q.free = q.free[:last]
			break
		}
	}
	if c == nil {
		c = make([]byte, 0, want)
	}
	q.chunks = append(q.chunks, c)
	return &q.chunks[len(q.chunks)-1]
}

// added accounts for n bytes. The writer is woken if that does not wait for flush.
func (q *queue) added(n int, wake bool) put {
	q.bytes += n
	if wake {
		q.filled.Signal()
	}
	if q.bytes >= q.size && !q.full {
		q.full = true
		return putFull
	}
	return putDone
}

// flush sees to it that the frames leave that were added. It writes a small content itself: waking the
// writer takes longer.
func (q *queue) flush() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.direct != nil && !q.writing && !q.rest && len(q.chunks) > 0 && q.bytes <= chunkSize {
		all, err := q.direct(q.chunks[0])
		if q.rest = !all; err != nil {
			break // the writer finds it, too
		}
		q.put(q.chunks[0])
		q.chunks = slices.Delete(q.chunks, 0, 1)
	}
	if len(q.chunks) == 0 {
		q.waiting = 0
	}
	q.filled.Signal() // it sleeps on if nothing is left
}

// seal adds the last record of a link, with which the writer ends. Later records stay for the next link.
func (q *queue) seal() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open || q.sealed {
		return
	}
	size := headSize + crcSize
	c := q.room(size, size)
	*c = appendControl(*c, recordIdle, nil)
	q.bytes += size
	q.filled.Signal()
	q.last, q.chunks, q.waiting, q.direct, q.sealed = q.chunks, nil, 0, nil, true
}

// take waits for chunks and takes all of them into list. It returns false when the queue is closed, or
// sealed and there are no more.
func (q *queue) take(list [][]byte) ([][]byte, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.writing = false
	for q.open && !q.sealed && len(q.chunks) == 0 && !q.rest {
		q.filled.Wait()
	}
	if q.sealed {
		list, q.last = q.last, nil
		return list, q.open && len(list) > 0
	}
	q.writing, q.rest = true, false
	list = append(list[:0], q.chunks...)
	clear(q.chunks)
	q.chunks, q.waiting = q.chunks[:0], 0
	return list, q.open
}

// put takes a chunk that has been written.
func (q *queue) put(c []byte) {
	if q.octets += uint64(len(c)); q.open {
		q.bytes -= len(c)
	}
	if len(q.free) < keepChunk && cap(c) <= chunkSize && (cap(c) >= firstSize || q.cut != nil) {
		q.free = append(q.free, c[:0])
	}
}

// written returns a chunk that the writer has written. It reports whether a queue that was full is
// half empty now.
func (q *queue) written(c []byte) (ready bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.put(c)
	if q.full && q.bytes <= q.size/2 {
		q.full = false
		return true
	}
	return false
}

// total returns the bytes that were ever written.
func (q *queue) total() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.octets
}

// begin opens the queue for a link. It has what was added since seal.
func (q *queue) begin(direct func([]byte) (bool, error)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open, q.sealed, q.full, q.direct, q.rest, q.writing = true, false, q.full && q.sealed, direct, false, false
	q.bytes = 0
	for _, c := range q.chunks {
		q.bytes += len(c)
	}
}

// end closes the queue and drops what it has. The writer ends.
func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open, q.bytes = false, 0
	q.frames, q.dropped, q.waiting = q.frames-q.waiting, q.dropped+q.waiting, 0
	clear(q.chunks)
	q.chunks, q.last, q.free, q.direct, q.sealed = q.chunks[:0], nil, nil, nil, false
	q.filled.Broadcast()
}

// trim frees the memory of an idle queue.
func (q *queue) trim() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes == 0 {
		q.free = nil
	}
}

// empty reports whether nothing waits.
func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes == 0
}

// isFull reports whether the queue became full and is not half empty again.
func (q *queue) isFull() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.full
}

// high reports whether a frame must not wait behind data (spec/hosts.md 1).
func high(f *wire.Frame) bool {
	return f.Kind != wire.Data && f.Kind != wire.Words || f.Short()
}
