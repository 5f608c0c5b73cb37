package workload

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/trace"
)

// Orders of a measurement (Perf) to its target.
const (
	opPerfMake  op = "perf-make"  // allocate memory for parts of a size
	opPerfFill  op = "perf-fill"  // fill it and remove some of its pages
	opPerfWatch op = "perf-watch" // record the times at which notifications come
	opPerfCheck op = "perf-check" // compare every byte with the source
	opPerfTouch op = "perf-touch" // touch every page
	opPerfServe op = "perf-serve" // carry out messages that come by RDMA (strategies)
)

// perfOrder is the argument of each order, and the answer.
type perfOrder struct {
	memoryKind             // for opPerfMake, or for opPerfFill and the orders after it
	Size       uint64      `json:"size,omitempty"` // of a part
	Parts      int         `json:"parts,omitempty"`
	Fill       perfFill    `json:"fill,omitzero"`
	Order      []int       `json:"order,omitempty"` // parts in the order of their transfers
	Last       uint64      `json:"last,omitempty"`  // value of the last word of a notification
	Times      []int64     `json:"times,omitempty"` // when each notification was seen, CLOCK_MONOTONIC
	Data       rdma.Remote `json:"data,omitzero"`   // the memory
	Words      rdma.Remote `json:"words,omitzero"`  // a pair of completion words for each part, and messages
	// Resident is the number of resident pages of the memory.
	Resident uint64 `json:"resident,omitempty"`
	Folio    Folio  `json:"folio,omitzero"`    // of the memory
	Address  string `json:"address,omitempty"` // of a stream's listener
}

// perfFill describes the content of memory: a pattern on the pages that are not absent.
type perfFill struct {
	Seed   uint64  `json:"seed"`
	Absent float64 `json:"absent,omitempty"` // probability that a page is absent, 0 to 1
	Zero   bool    `json:"zero,omitempty"`   // zeros instead of the pattern
}

func (f perfFill) absent(page uint64) bool {
	return f.Absent >= 1 || f.Absent > 0 && float64(word(^f.Seed, page)>>11)/(1<<53) < f.Absent
}

// runs divides size bytes, which must be whole pages, into runs of pages that are all absent
// or all present.
func (f perfFill) runs(size uint64) iter.Seq2[span, bool] {
	return func(yield func(span, bool) bool) {
		for s := (span{}); s.to < size; s.from = s.to {
			absent := f.absent(s.from / pageSize)
			for s.to < size && f.absent(s.to/pageSize) == absent {
				s.to += pageSize
			}
			if !yield(s, absent) {
				return
			}
		}
	}
}

// word returns word i of the memory.
func (f perfFill) word(i uint64) uint64 {
	if f.Zero || f.absent(i*8/pageSize) {
		return 0
	}
	return word(f.Seed, i)
}

// Sizes of a measurement's memory, in bytes, and its largest number of parts. Values are
// defined by this project.
const (
	perfArea  = 4 << 20 // of a row, if its size is not given
	perfParts = 256
	wordsSize = 3 * pageSize // perfParts pairs of 16 bytes, messages, the ring
	ringPlace = 2 * pageSize // a page that strategies copy from
	perfLimit = 4 << 30
)

// perfEnd is one end of a measurement. The embedded perfMemory is that of the current kind.
// The end keeps the memory of each kind, so that kinds can take turns.
type perfEnd struct {
	ep *rdma.Endpoint
	*perfMemory
	kinds map[memoryKind]*perfMemory
	pages *pagemap
	clock clock

	streamed streamed
}

func newPerfEnd(ep *rdma.Endpoint) (*perfEnd, error) {
	c := clock{epoch: time.Now()}
	var err error
	if c.base, err = trace.Base(func() int64 { return time.Since(c.epoch).Nanoseconds() }); err != nil {
		return nil, err
	}
	pages, err := openPagemap()
	if err != nil {
		return nil, err
	}
	return &perfEnd{ep: ep, kinds: make(map[memoryKind]*perfMemory), pages: pages, clock: c}, nil
}

// clock converts Go's times to CLOCK_MONOTONIC, which all processes of a machine share,
// without a system call.
type clock struct {
	epoch time.Time
	base  int64 // at the epoch, ns
}

func (c clock) of(t time.Time) int64 { return c.base + t.Sub(c.epoch).Nanoseconds() }

func stride(size uint64) uint64 { return roundUp(max(size, 1), pageSize) }

// use selects the kind of memory for the following calls.
func (e *perfEnd) use(kind memoryKind) (err error) {
	if kind.Memory, err = memoryOf(e.ep, kind.Memory); err != nil {
		return err
	}
	if e.kinds[kind] == nil {
		e.kinds[kind] = &perfMemory{memoryKind: kind}
	}
	e.perfMemory = e.kinds[kind]
	return nil
}

// make allocates the memory of a kind anew. It is absent.
func (e *perfEnd) make(kind memoryKind, size uint64, parts int) error {
	if err := e.use(kind); err != nil {
		return err
	}
	if err := e.release(); err != nil {
		return err
	}
	if parts < 1 || size < 1 || size > MaxSize || uint64(parts) > perfLimit/stride(size) {
		return fmt.Errorf("%w: %d parts of %d bytes: want %d bytes at most", ErrRequest, parts, size, uint64(perfLimit))
	}
	e.stride = stride(size)
	var err error
	if e.data, err = newArea(e.ep, e.memoryKind, e.stride*uint64(parts)); err == nil {
		e.words, err = newArea(e.ep, memoryKind{Memory: Shared}, wordsSize)
	}
	if err != nil {
		return err
	}
	clear(e.words.b)
	e.size, e.parts = size, parts
	return nil
}

// release frees the memory of the current kind.
func (e *perfEnd) release() error {
	err := errors.Join(e.data.close(e.ep), e.words.close(e.ep))
	*e.perfMemory = perfMemory{memoryKind: e.memoryKind}
	return err
}

// fillTries bounds the attempts of fill: a page-in that was requested before may come late.
const fillTries = 8

// fill fills the memory and verifies which of its pages are resident.
func (e *perfEnd) fill(f perfFill) error {
	e.filled = f
	drop := unix.MADV_REMOVE // for a memfd, which other processes have mapped, too
	if e.Memory == Any {
		drop = unix.MADV_DONTNEED
	}
	b, va := e.data.b, e.data.name.VA
	for range fillTries {
		if f.Absent < 1 {
			for i := uint64(0); i < uint64(len(b)); i += 8 {
				binary.LittleEndian.PutUint64(b[i:], f.word(i/8))
			}
		}
		there := 0
		for s, absent := range f.runs(uint64(len(b))) {
			if !absent {
				there += int((s.to - s.from) / pageSize)
				continue
			}
			if err := unix.Madvise(b[s.from:s.to], drop); err != nil {
				return fmt.Errorf("removing pages: madvise: %w", err)
			}
			// Only these: a resident page that is invalidated would fault, too.
			if e.Memory == Shared {
				if err := e.ep.Invalidate(va+device.VA(s.from), s.to-s.from); err != nil {
					return err
				}
			}
		}
		if e.Folios && there > 0 { // removing a page of a folio unmaps the others here
			for s, absent := range f.runs(uint64(len(b))) {
				if !absent {
					_ = unix.Madvise(b[s.from:s.to], unix.MADV_POPULATE_READ) // else they are not resident
				}
			}
		}
		resident, err := e.resident()
		if err != nil {
			return err
		}
		if resident != there {
			time.Sleep(time.Millisecond)
			continue
		}
		// A device with its own tables needs entries for the resident pages: otherwise the
		// first transfer of each would fault.
		for s, absent := range f.runs(uint64(len(b))) {
			if !absent && !e.ep.Info().SVA() {
				err = errors.Join(err, e.ep.Prefetch(context.Background(), va+device.VA(s.from), s.to-s.from, true))
			}
		}
		return err
	}
	return fmt.Errorf("removed pages become resident again: another process still brings them in")
}

func (e *perfEnd) resident() (int, error) {
	if !e.ep.Info().SVA() {
		return residentShared(e.data.b)
	}
	return e.pages.resident(e.data.b)
}

// check compares every byte: in the transferred parts with the source, which from describes,
// and in the others with the old content.
func (e *perfEnd) check(size uint64, order []int, from perfFill) error {
	b := e.data.b
	came := make(map[int]bool, len(order))
	for _, part := range order {
		came[part] = true
	}
	for i := uint64(0); i < uint64(len(b)); i += 8 {
		var want [8]byte
		binary.LittleEndian.PutUint64(want[:], e.filled.word(i/8))
		if part, at := i/e.stride, i%e.stride; at < size && came[int(part)] {
			var is [8]byte
			binary.LittleEndian.PutUint64(is[:], from.word(i/8))
			copy(want[:min(8, size-at)], is[:])
		}
		if [8]byte(b[i:]) != want {
			return fmt.Errorf("%w: part %d of %d bytes has %x at byte %d, want %x", errBytes, i/e.stride, size, b[i:i+8], i%e.stride, want)
		}
	}
	return nil
}

func (e *perfEnd) touch() {
	b := e.data.b
	for i := 0; i < len(b); i += pageSize {
		b[i] = 0
	}
}

// watch waits for the notification of each part and returns the times.
func (e *perfEnd) watch(ctx context.Context, order []int, last uint64) ([]int64, error) {
	times := make([]int64, len(order))
	for i, part := range order {
		w, err := rdma.Word(e.words.b, uint64(16*part+8)) // the second word of the part's pair
		if err != nil {
			return nil, err
		}
		if err := e.ep.WaitNotification(ctx, w, last); err != nil {
			return nil, err
		}
		times[i] = e.clock.of(time.Now())
	}
	return times, nil
}

func (e *perfEnd) close() error {
	e.streamed.close()
	var err error
	for _, m := range e.kinds {
		e.perfMemory = m
		err = errors.Join(err, e.release())
	}
	return errors.Join(err, e.pages.close())
}

// obeyPerf carries out an order of a measurement.
func (p *process) obeyPerf(ctx context.Context, o op, q perfOrder) (perfOrder, error) {
	var r perfOrder
	var err error
	if p.perf == nil {
		if p.perf, err = newPerfEnd(p.endpoint.rdma()); err != nil {
			return r, err
		}
	}
	e := p.perf
	if o == opPerfFill {
		err = e.use(q.memoryKind)
	}
	switch {
	case err != nil:
		return r, err
	case o != opPerfMake && (e.perfMemory == nil || e.data.b == nil):
		return r, fmt.Errorf("%s before %s", o, opPerfMake)
	}
	switch o {
	case opPerfMake:
		if err = e.make(q.memoryKind, q.Size, q.Parts); err == nil {
			r.Data, r.Words, r.Folio = e.data.name, e.words.name, e.data.folio
		}
	case opPerfFill:
		if err = e.fill(q.Fill); err == nil {
			r.Data = e.data.name
		}
	case opPerfTouch:
		e.touch()
	case opPerfWatch:
		r.Times, err = e.watch(ctx, q.Order, q.Last)
	case opPerfCheck:
		err = e.check(q.Size, q.Order, q.Fill)
	case opPerfEcho:
		err = e.echo(ctx, q)
	case opPerfStream:
		r, err = e.streams(q)
	case opPerfServe:
		var n int
		if err = e.serve(ctx, q.Words); err == nil {
			n, err = e.resident()
		}
		r.Resident = uint64(n)
	default:
		err = fmt.Errorf("no such order: %q", o)
	}
	return r, err
}
