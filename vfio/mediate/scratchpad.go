package mediate

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"github.com/exanet/pfd/device"
)

// scratchpad is the descriptor part of btcm in our memory. The device reads and writes it at any
// time: every access is one atomic of its width. This file holds the package's unsafe pointers.
//
// The memory can become inaccessible: the kernel removes the registers of a device that is
// unplugged, and memory of a server may have no page behind it. Every access recovers from the
// fault: a load reports failure, and lost is called.
type scratchpad struct {
	base unsafe.Pointer
	size uint32
	lost func() // nil: not called
}

var errScratchpad = errors.New("the descriptors of btcm are not mapped")

func newScratchpad(b []byte) (*scratchpad, error) {
	base := unsafe.Pointer(unsafe.SliceData(b))
	if len(b) != device.BTCMDoorbells || uintptr(base)%8 != 0 {
		return nil, fmt.Errorf("%w: %d bytes, must be %d", errScratchpad, len(b), device.BTCMDoorbells)
	}
	return &scratchpad{base: base, size: uint32(len(b))}, nil
}

// wordsOf returns a scratchpad over other memory that the device accesses.
func wordsOf(b []byte) *scratchpad {
	return &scratchpad{base: unsafe.Pointer(unsafe.SliceData(b)), size: uint32(len(b))}
}

// addressOf returns the address of memory of this process.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// holds reports whether the whole access lies in the scratchpad.
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
	atomic.SwapUint32((*uint32)(unsafe.Add(s.base, off)), v) // as in package attach: a load that follows comes after it
	return true
}

func (s *scratchpad) store64(off uint32, v uint64) (ok bool) {
	defer s.faults(debug.SetPanicOnFault(true), &ok)
	atomic.SwapUint64((*uint64)(unsafe.Add(s.base, off)), v)
	return true
}

// faults is deferred by an access: it recovers from a fault if the access is not done.
func (s *scratchpad) faults(old bool, done *bool) {
	debug.SetPanicOnFault(old)
	if *done {
		return
	}
	if recover() != nil && s.lost != nil {
		s.lost()
	}
}

// at returns the offset of a channel's descriptor.
func at(slot, ch int) uint32 {
	return uint32(device.BTCMDescriptors + device.PageSize*slot + device.DescriptorSize*ch)
}

// put writes a descriptor that is ready to start.
func (s *scratchpad) put(slot, ch int, words *[device.DescriptorWords]uint64) {
	device.StoreDescriptor(at(slot, ch), words,
		func(off, v uint32) { s.store32(off, v) }, func(off uint32, v uint64) { s.store64(off, v) })
}

// state returns a channel's done, and its status and paused blocks, which are final when done is.
func (s *scratchpad) state(slot, ch int) (done uint32, status, paused uint8, ok bool) {
	o := at(slot, ch)
	d, there := s.load(o+device.DescDone, 4)
	v, still := s.load(o+device.DescReserved1, 8)
	return uint32(d), uint8(v), uint8(v >> device.DescPausedShift), there && still
}
