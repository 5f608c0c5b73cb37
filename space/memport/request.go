package memport

import (
	"encoding/binary"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space/proc"
)

// Request is one request to a helper. The caller sets it up with one of the functions below and
// submits it. The results are valid when Done is called; until then the Request belongs to the
// port.
type Request struct {
	op    op
	va    device.VA
	pages int
	bytes int
	write bool
	touch uint64
	bufs  [][]byte

	// Done is called by the goroutine that polls the port when the results are valid.
	Done func()

	Walk   proc.Walk    // of a walk
	Moved  int          // of a move: bytes
	PageIn gup.Result   // of a page-in
	Err    error        // of a walk or a move
	answer [answer]byte // of the small requests
}

// answer is the size of a small answer, bytes: a mapping, or pagemap entries.
const answer = 8 * proc.MaxPages

// AskWalk makes r a walk, as proc.Process.Walk.
func (r *Request) AskWalk(va device.VA, pages int, write bool) {
	r.op, r.va, r.pages, r.bytes, r.write, r.bufs = opWalk, va, pages, 0, write, nil
}

// AskMove makes r a write of the buffers to va, or a read into them. If ordered, they are two
// words of eight bytes, and the second is written after the first.
func (r *Request) AskMove(bufs [][]byte, va device.VA, write, ordered bool) {
	r.op, r.va, r.pages, r.write, r.bufs = opMove, va, 0, write, bufs
	if ordered {
		r.op = opOrdered
	}
	r.bytes = 0
	for _, b := range bufs {
		r.bytes += len(b)
	}
}

// AskPageIn makes r a page-in, as gup.Pager.PageIn.
func (r *Request) AskPageIn(va device.VA, pages int, write bool) {
	r.op, r.va, r.pages, r.bytes, r.write, r.bufs = opPageIn, va, pages, 0, write, nil
}

// AskTouch makes r a touch of pages from va on, one bit each, as gup.Pager.Touch.
func (r *Request) AskTouch(va device.VA, touch uint64, write bool) {
	r.AskPageIn(va, proc.MaxPages, write)
	r.op, r.touch = opTouch, touch
}

func (r *Request) ask(o op, va device.VA, pages, bytes int) {
	r.op, r.va, r.pages, r.bytes, r.write, r.bufs = o, va, pages, bytes, false, nil
}

// fail completes r without an answer.
func (r *Request) fail(err error) {
	r.Walk, r.Moved, r.Err = proc.Walk{}, 0, err
	r.PageIn = gup.Result{Err: &gup.Error{VA: r.va, Write: r.write, Err: err}}
}

// take takes an answer: the code, count and two words that the helper wrote, which may have any
// value.
func (r *Request) take(code, count, first, second uint64) {
	err := decodeError(code)
	all := pageMask(r.pages)
	switch r.op {
	case opWalk:
		r.Err = err
		r.Walk = proc.Walk{Absent: first & all, Denied: second & all &^ first}
	case opMove, opOrdered:
		r.Moved = int(min(count, uint64(r.bytes)))
		if r.Err = err; err == nil && r.Moved < r.bytes {
			r.Err = &Error{Err: proc.ErrInaccessible}
		}
	case opTouch:
		r.PageIn = gup.Result{Kind: gup.Kind(min(count, uint64(gup.Kinds-1)))}
	case opPageIn:
		r.PageIn = gup.Result{
			Resident: first & all, New: first & second & all,
			Kind: gup.Kind(min(count&(countThere-1), uint64(gup.Kinds-1))),
		}
		r.PageIn.There = count&countThere != 0 && r.PageIn.Resident&1 != 0
		if r.PageIn.Resident&1 == 0 {
			if err == nil {
				err = &Error{Err: gup.ErrNotResident}
			}
			r.PageIn.Err = &gup.Error{VA: r.va, Write: r.write, Err: err}
		}
	default:
		r.Err = err
		r.Moved = int(min(count, uint64(r.bytes)))
	}
}

// pageMask returns a bit for each of n pages, 1 to 64.
func pageMask(n int) uint64 {
	if n <= 0 || n > proc.MaxPages {
		return ^uint64(0)
	}
	return ^uint64(0) >> (proc.MaxPages - n)
}

// A mapping in a small answer, eight bytes each. Defined by this project.
const (
	mappingSize = 32

	flagRead   = 1 << 0
	flagWrite  = 1 << 1
	flagExec   = 1 << 2
	flagShared = 1 << 3
	flagFile   = 1 << 4
)

func putMapping(b []byte, m *proc.Mapping) {
	var flags uint64
	for _, f := range []struct {
		set bool
		bit uint64
	}{{m.Read, flagRead}, {m.Write, flagWrite}, {m.Exec, flagExec}, {m.Shared, flagShared}, {m.File, flagFile}} {
		if f.set {
			flags |= f.bit
		}
	}
	for i, v := range []uint64{uint64(m.Start), uint64(m.End), m.Offset, flags} {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
}

// getMapping decodes a mapping from any bytes.
func getMapping(b []byte) proc.Mapping {
	flags := binary.LittleEndian.Uint64(b[24:])
	return proc.Mapping{
		Start: device.VA(binary.LittleEndian.Uint64(b)), End: device.VA(binary.LittleEndian.Uint64(b[8:])),
		Offset: binary.LittleEndian.Uint64(b[16:]),
		Read:   flags&flagRead != 0, Write: flags&flagWrite != 0, Exec: flags&flagExec != 0,
		Shared: flags&flagShared != 0, File: flags&flagFile != 0,
	}
}
