package record

import (
	"io"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/queue"
	"github.com/exanet/pfd/soc/wire"
)

const (
	// chunk is how many bytes are written to the file at a time (defined by this project).
	chunk = 32 << 10
	// flushTime is how long records stay in the buffer, in ns, if more records follow (defined by
	// this project).
	flushTime = 1e9
	// checkEvery is the number of records from one Check to the next (defined by this project).
	checkEvery = 4096
)

// Writer writes a recording. It belongs to the goroutine that owns the machines. After an error
// of its file it records nothing more.
type Writer struct {
	to     io.Writer
	failed func(error)

	buf     []byte
	flushed int64
	state   state
	rec     Record
	count   uint64
	digest  Digest
	outside wire.Frame             // of another host, which is about to arrive
	payload int                    // the length of its payload
	admits  *wire.Frame            // it; nil: none
	routes  map[uint64]bool        // nodes of other hosts that have a route
	frames  map[*wire.Frame]uint64 // in flight, by their transmission number
	reads   map[read]*queue.Access // outstanding reads of queues in memory
	next    uint64
	err     error
}

// read identifies a read of a node's queues in memory.
type read struct {
	node int
	id   uint32
}

// NewWriter begins a recording. failed is called once with the file's error if the recording ends
// early; it must not block. The file should not block either.
func NewWriter(to io.Writer, h Header, failed func(error)) *Writer {
	return &Writer{to: to, failed: failed, buf: AppendHeader(nil, h), frames: map[*wire.Frame]uint64{}, reads: map[read]*queue.Access{}}
}

// WriteHeader writes the header to file itself, before the first record, which would otherwise
// flush it: so a file that cannot be written is refused at the start.
func (w *Writer) WriteHeader(file io.Writer) error {
	_, err := file.Write(w.buf)
	w.buf = w.buf[:0]
	return err
}

// Admit prepares the recording of a frame of another host, which is to be passed to a node by the next Step:
// after that the frame may be in use for another.
func (w *Writer) Admit(f *wire.Frame) {
	if w.err != nil {
		return
	}
	w.admits, w.outside, w.payload = f, *f, len(f.Payload)
	w.outside.Payload = nil
	delete(w.frames, f) // it was one that a node sent to another host
}

// Reached records whether a node of another host has a route, where a machine asks for it.
func (w *Writer) Reached(id device.NodeID, ok bool) {
	if w.err != nil || w.routes[uint64(id)] == ok {
		return
	}
	if w.routes == nil {
		w.routes = map[uint64]bool{}
	}
	w.routes[uint64(id)] = ok
	w.rec = Record{Kind: Route, Event: soc.Event{Destination: uint64(id), OK: ok}}
	w.add(w.state.at)
}

// Step records an event that a node handled at now, and the resulting actions.
func (w *Writer) Step(now int64, node int, ev *soc.Event, out []soc.Action) {
	if w.err != nil {
		return
	}
	w.rec = Record{Kind: Kind(ev.Kind), Node: node, At: now, Event: *ev}
	switch ev.Kind {
	case soc.QueueAccessed:
		// The machine's next read reuses the buffer, and is made after this.
		if a := w.reads[read{node, ev.Access}]; a != nil && ev.OK {
			w.rec.Data = a.Data
		}
		delete(w.reads, read{node, ev.Access})
	case soc.FrameArrived:
		if ev.Frame == w.admits {
			w.rec.Kind, w.rec.Outside, w.rec.Payload = Admit, w.outside, w.payload
			w.admits = nil
			break
		}
		// The frame itself may be in use for another by now.
		w.rec.Frame = w.frames[ev.Frame]
		delete(w.frames, ev.Frame)
	}
	w.add(now)
	w.acted(node, out)
}

// Store records a register write and the resulting actions.
func (w *Writer) Store(now int64, node int, id device.WindowID, off uint32, width int, v uint64, out []soc.Action) {
	if w.err != nil {
		return
	}
	w.rec = Record{Kind: Store, Node: node, At: now, Window: id, Offset: off, Width: width, Value: v}
	w.add(now)
	w.acted(node, out)
}

// Load records a register read and its value. Reads of memory are omitted: they change nothing.
func (w *Writer) Load(node int, id device.WindowID, off uint32, width int, got uint64) {
	if w.err != nil || id == device.BTCM {
		return
	}
	w.rec = Record{Kind: Load, Node: node, Window: id, Offset: off, Width: width}
	w.add(w.state.at)
	w.digest.Loaded(got)
}

// Take records the message that was taken from the head of a mailbox at now (soc.Node.TakeMail).
func (w *Writer) Take(now int64, node, box int, source mailbox.Source, words *[device.PktzMaxWords]uint64, ok bool) {
	if w.err != nil {
		return
	}
	w.rec = Record{Kind: Take, Node: node, At: now, Mailbox: box}
	w.add(now)
	w.digest.Taken(source, words, ok)
}

func (w *Writer) acted(node int, out []soc.Action) {
	if w.err != nil {
		return // with this very record
	}
	w.digest.Actions(node, out)
	for i := range out {
		if f := out[i].Frame; f != nil {
			w.frames[f] = w.next
			w.next++
		}
		if q := out[i].Queue; q != nil && !q.Write {
			w.reads[read{node, q.ID}] = q
		}
	}
}

// add appends w.rec, after a Check if one is due.
func (w *Writer) add(now int64) {
	if w.count%checkEvery == 0 && w.count > 0 {
		w.check(Check)
	}
	w.buf = w.state.appendRecord(w.buf, &w.rec)
	w.count++
	if len(w.buf) >= chunk || now-w.flushed >= flushTime {
		w.flushed = now
		w.flush()
	}
}

func (w *Writer) check(k Kind) {
	w.buf = w.state.appendRecord(w.buf, &Record{Kind: k, Count: w.count, Digest: uint64(w.digest)})
}

func (w *Writer) flush() {
	_, err := w.to.Write(w.buf)
	w.buf = w.buf[:0]
	if err != nil && w.err == nil {
		w.err = err
		w.frames, w.reads = nil, nil
		if w.failed != nil {
			w.failed(err)
		}
	}
}

// Digest returns the digest so far and the number of records.
func (w *Writer) Digest() (d Digest, records uint64) { return w.digest, w.count }

// Close writes the end and returns the recording's error, if any. It does not close the file.
func (w *Writer) Close() error {
	if w.err == nil {
		w.check(End)
		w.flush()
	}
	return w.err
}
