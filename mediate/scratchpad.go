package mediate

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"github.com/exanet/pfd/device"
)

// scratchpad is the descriptor part of btcm in our memory. The device reads and
// writes it at any time: every access is one atomic of its width. This file
// holds the package's unsafe pointers.
//
// The memory can go: the kernel takes the registers of a device away that is removed,
// and what a server gave may have no page behind it. Every access takes the fault: a
// load says that it failed, and lost is called.
type scratchpad struct {
	base unsafe.Pointer
	size uint32
	lost func() // nil: nobody is told
}

var errScratchpad = errors.New("the descriptors of btcm are not mapped")

func newScratchpad(b []byte) (*scratchpad, error) {
	base := unsafe.Pointer(unsafe.SliceData(b))
	if len(b) != device.BTCMDoorbells || uintptr(base)%8 != 0 {
		return nil, fmt.Errorf("%w: %d bytes, want %d", errScratchpad, len(b), device.BTCMDoorbells)
	}
	return &scratchpad{base: base, size: uint32(len(b))}, nil
}

// wordsOf gives other memory that the device reads and writes, by its words.
func wordsOf(b []byte) *scratchpad {
	return &scratchpad{base: unsafe.Pointer(unsafe.SliceData(b)), size: uint32(len(b))}
}

// addressOf gives where memory of this process is.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// holds tells whether an access lies in it as a whole.
func (s *scratchpad) holds(off uint32, size int) bool {
	return off%uint32(size) == 0 && off < s.size
}

func (s *scratchpad) load(off uint32, size int) (v uint64, ok bool) {
	defer s.faults(debug.SetPanicOnFault(true), &ok)
	if size == 4 {
		return uint64(atomic.LoadUint32((*uint32)(unsafe.Add(s.base, off)))), true
	}
	return atomic.LoadUint64((*uint64)(unsafe.Add(s.base, off))), true
}

func (s *scratchpad) store32(off, v uint32) (ok bool) {
	defer s.faults(debug.SetPanicOnFault(true), &ok)
	atomic.StoreUint32((*uint32)(unsafe.Add(s.base, off)), v)
	return true
}

func (s *scratchpad) store64(off uint32, v uint64) (ok bool) {
	defer s.faults(debug.SetPanicOnFault(true), &ok)
	atomic.StoreUint64((*uint64)(unsafe.Add(s.base, off)), v)
	return true
}

// faults is deferred by an access: it takes the fault of one that is not done.
func (s *scratchpad) faults(old bool, done *bool) {
	debug.SetPanicOnFault(old)
	if *done {
		return
	}
	if recover() != nil && s.lost != nil {
		s.lost()
	}
}

// at gives the offset of a channel's descriptor.
func at(slot, ch int) uint32 {
	return uint32(device.BTCMDescriptors + device.PageSize*slot + device.DescriptorSize*ch)
}

// put writes a descriptor that is ready to start.
func (s *scratchpad) put(slot, ch int, words *[device.DescriptorWords]uint64) {
	device.StoreDescriptor(at(slot, ch), words,
		func(off, v uint32) { s.store32(off, v) }, func(off uint32, v uint64) { s.store64(off, v) })
}

// state gives a channel's done, and status and paused blocks, which are final
// when done is.
func (s *scratchpad) state(slot, ch int) (done uint32, status, paused uint8, ok bool) {
	o := at(slot, ch)
	d, there := s.load(o+device.DescDone, 4)
	v, still := s.load(o+device.DescReserved1, 8)
	return uint32(d), uint8(v), uint8(v >> device.DescPausedShift), there && still
}
