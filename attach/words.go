package attach

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// words is shared memory accessed by atomics, from base on. The package's unsafe pointers into
// the pages are all in this file; every offset is a constant or masked. A Port's words are two pages,
// and its offsets are below that.
//
// The KeepAlive in these methods keeps a mapping, which is unmapped with the Pages that holds the
// words (MapMemory), until the access is done.
type words struct{ base unsafe.Pointer }

// wordsOf returns accessors for b, whose length is a power of two. ok is false if b is
// not aligned to 8 bytes.
func wordsOf(b []byte) (w words, ok bool) {
	w = words{unsafe.Pointer(unsafe.SliceData(b))}
	return w, uintptr(w.base)%8 == 0
}

// part returns accessors for the words from an offset on.
func (w *words) part(at uint32) words { return words{unsafe.Add(w.base, at)} }

func (w *words) w32(off uint32) *uint32 {
	return (*uint32)(unsafe.Add(w.base, off&(MemorySize-4)))
}

func (w *words) w64(off uint32) *uint64 {
	return (*uint64)(unsafe.Add(w.base, off&(MemorySize-8)))
}

func (w *words) load32(off uint32) uint32 {
	v := atomic.LoadUint32(w.w32(off))
	runtime.KeepAlive(w)
	return v
}

// store32 exchanges, as store64 does: a load that follows comes after the store for every thread, on
// which those rely that announce something and then look whether the other side sleeps. The race
// detector makes atomic stores without that order. On amd64 both are the same instruction.
func (w *words) store32(off, v uint32) {
	atomic.SwapUint32(w.w32(off), v)
	runtime.KeepAlive(w)
}

func (w *words) add32(off, v uint32) uint32 {
	n := atomic.AddUint32(w.w32(off), v)
	runtime.KeepAlive(w)
	return n
}

func (w *words) or32(off, bits uint32) {
	atomic.OrUint32(w.w32(off), bits)
	runtime.KeepAlive(w)
}

func (w *words) swap32(off, v uint32) uint32 {
	old := atomic.SwapUint32(w.w32(off), v)
	runtime.KeepAlive(w)
	return old
}

func (w *words) load64(off uint32) uint64 {
	v := atomic.LoadUint64(w.w64(off))
	runtime.KeepAlive(w)
	return v
}

func (w *words) store64(off uint32, v uint64) {
	atomic.SwapUint64(w.w64(off), v)
	runtime.KeepAlive(w)
}

func (w *words) cas64(off uint32, from, to uint64) bool {
	ok := atomic.CompareAndSwapUint64(w.w64(off), from, to)
	runtime.KeepAlive(w)
	return ok
}

func (w *words) or64(off uint32, bits uint64) {
	atomic.OrUint64(w.w64(off), bits)
	runtime.KeepAlive(w)
}
