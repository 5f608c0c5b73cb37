package memport

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space/proc"
)

// Layout of a port's memory (docs/attach.md, "The memory helper"). Values below are defined by
// this project. The package's unsafe pointers are all in this file; every offset is a constant or
// is computed from a checked slot number.
const (
	Slots = 16 // requests in flight

	offSubmitted = 0x000 // u32: pfd adds 1 after publishing a request; futex word
	offAwake     = 0x040 // u32: number of the helper's thread that polls for requests, 0: none
	offCompleted = 0x080 // u32: the helper adds 1 after answering
	offAsleep    = 0x0c0 // u32: pfd sleeps: the helper must write the eventfd
	offProbe     = 0x100 // u64: address of an absent page of the process, 0: none (proc.OpenProbe)
	offSlots     = 0x400
	slotStride   = 0x80
	offData      = device.PageSize
	dataStride   = proc.MaxBytes

	// Size of the memory, bytes.
	Size = offData + Slots*dataStride
)

// Words of a slot.
const (
	slotState  = 0x00 // u32
	slotOp     = 0x04 // u32
	slotVA     = 0x08 // u64
	slotPages  = 0x10 // u64
	slotBytes  = 0x18 // u64
	slotWrite  = 0x20 // u64: 1: write
	slotTouch  = 0x28 // u64: pages of a touch
	slotCode   = 0x40 // u64: errno in the upper half, code in the lower
	slotCount  = 0x48 // u64: bytes moved, or entries; for a page-in the kind and countThere
	slotFirst  = 0x50 // u64: absent pages, or resident ones
	slotSecond = 0x58 // u64: denied pages; for a page-in the new ones of the resident
)

// countThere says in slotCount that the first page of a page-in was ready before.
const countThere = 1 << 8

// States of a slot.
const (
	stateFree      = 0
	stateSubmitted = 1
	stateClaimed   = 2
	stateDone      = 3
)

// op is the operation of a request.
type op uint32

const (
	opWalk op = iota + 1
	opMove
	opOrdered // sixteen bytes; the second eight are written after the first
	opPageIn
	opMapping // the mapping of a page, in the data
	opPagemap // pagemap entries, in the data
	opInFile  // whether the file behind a mapping is long enough
	opTouch   // like a page-in, of single pages of 64, without a look at which have come
)

// mapped is a port's memory.
type mapped struct {
	b    []byte
	base unsafe.Pointer
}

func newMapped(b []byte) mapped { return mapped{b, unsafe.Pointer(unsafe.SliceData(b))} }

func (m *mapped) w32(off uint32) *uint32 { return (*uint32)(unsafe.Add(m.base, off)) }
func (m *mapped) w64(off uint32) *uint64 { return (*uint64)(unsafe.Add(m.base, off)) }

func slotAt(i int) uint32 { return offSlots + slotStride*uint32(i) }

func (m *mapped) state(i int) *uint32 { return m.w32(slotAt(i) + slotState) }

func (m *mapped) load(i int, word uint32) uint64 {
	return atomic.LoadUint64(m.w64(slotAt(i) + word))
}

func (m *mapped) store(i int, word uint32, v uint64) {
	atomic.StoreUint64(m.w64(slotAt(i)+word), v)
}

func (m *mapped) data(i, n int) []byte {
	at := offData + i*dataStride
	return m.b[at : at+n : at+n]
}

// sentinels returns the errors that a helper names by number, from 1 on. The numbers are part of
// the layout: append new ones.
func sentinels() []error {
	return []error{
		proc.ErrGone, proc.ErrUnmapped, proc.ErrDenied, proc.ErrPastEnd, proc.ErrUnknown,
		proc.ErrInaccessible, proc.ErrPermission, proc.ErrRange, proc.ErrClosed,
		gup.ErrNoFilePage, gup.ErrNotResident, gup.ErrHangs, gup.ErrUnanswered,
	}
}

// codeOther is the code of an error that is not a sentinel.
const codeOther = 0xffff

// encodeError returns an error's code and errno.
func encodeError(err error) uint64 {
	if err == nil {
		return 0
	}
	var errno errnoError
	v := uint64(0)
	if errors.As(err, &errno) {
		v = uint64(uint32(errno)) << 32
	}
	for i, s := range sentinels() {
		if errors.Is(err, s) {
			return v | uint64(i+1)
		}
	}
	return v | codeOther
}

// decodeError returns the error that a helper named; every value but 0 is an error.
func decodeError(v uint64) error {
	if v == 0 {
		return nil
	}
	e := &Error{Err: ErrHelper}
	if i := uint32(v) - 1; int64(i) < int64(len(sentinels())) {
		e.Err = sentinels()[i]
	}
	if n := errnoError(v >> 32); n != 0 {
		e.Errno = n
	}
	return e
}
