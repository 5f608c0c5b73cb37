package view

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/exanet/pfd/device"
)

// ReadOnly is the memory that a process shares read-only, whether or not a View has it. It is
// safe for concurrent use. The zero value holds no memory.
type ReadOnly struct {
	mu   sync.Mutex
	list atomic.Pointer[[]extent] // replaced as a whole, so that Forbids needs no lock
}

// extent is memory from start to before end.
type extent struct{ start, end device.VA }

// Forbids reports whether size bytes from va on overlap such memory.
func (r *ReadOnly) Forbids(va device.VA, size uint64) bool {
	list := r.list.Load()
	if list == nil || size == 0 {
		return false
	}
	last := va + device.VA(size-1)
	return slices.ContainsFunc(*list, func(s extent) bool { return va < s.end && last >= s.start })
}

// Add adds memory. It returns false if there are already MaxShares pieces.
func (r *ReadOnly) Add(va device.VA, size uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []extent
	if old := r.list.Load(); old != nil {
		list = slices.Clone(*old)
	}
	if len(list) >= MaxShares {
		return false
	}
	list = append(list, extent{va, va + device.VA(size)})
	r.list.Store(&list)
	return true
}

// Remove removes what one Add added, with exactly its bounds. It returns false if there is none.
func (r *ReadOnly) Remove(va device.VA, size uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.list.Load()
	if old == nil {
		return false
	}
	i := slices.Index(*old, extent{va, va + device.VA(size)})
	if i < 0 {
		return false
	}
	list := slices.Delete(slices.Clone(*old), i, i+1)
	if len(list) == 0 {
		r.list.Store(nil)
	} else {
		r.list.Store(&list)
	}
	return true
}
