package shadow

import "fmt"

// Range is the DMA addresses First to Last.
type Range struct{ First, Last uint64 }

// Kind is what a mapping does to the memory that it maps.
type Kind uint8

const (
	// Files: the device is another process that maps the same files. Nothing is
	// pinned, and pages may come and go (vfio-user).
	Files Kind = iota
	// Pinned: a mapping pins what it maps, and counts it in VmLck or VmPin
	// (VFIO_IOMMU_MAP_DMA, IOMMU_IOAS_MAP).
	Pinned
	// Physical: addresses are those of memory, and nobody pins (no-IOMMU, UIO). The
	// DMA is a Physicist, and its MapDMA and UnmapDMA have nothing to do.
	Physical
)

// Physicist is a DMA of kind Physical.
type Physicist interface {
	DMA
	// Address gives where the first byte of memory of this process lies. The page is
	// present.
	Address(b []byte) (uint64, error)
}

// DMA is the device's view of memory, as its driver makes it: pieces of memfds
// at DMA addresses. Its methods may be called on any goroutine.
type DMA interface {
	// Ranges gives the addresses that may be used, in ascending order
	// (VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, IOMMU_IOAS_IOVA_RANGES).
	Ranges() ([]Range, error)
	Kind() Kind
	// MapDMA maps a part of a memfd at an address. Rights are those of
	// linux/vfio.h, VFIO_IOMMU_MAP_DMA.
	MapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error
	// UnmapDMA takes every mapping inside a range away, and none lies across its
	// ends (VFIO_TYPE1v2_IOMMU).
	UnmapDMA(addr, size uint64) error
}

// Awaiter is a DMA whose MapDMA may come back before the device has the mapping. What
// reaches the device another way may then come before it.
type Awaiter interface {
	DMA
	// Await has the next MapDMA come back when the device has the mapping.
	Await()
}

// Rights of a mapping (linux/vfio.h, VFIO_DMA_MAP_FLAG_*).
const (
	dmaRead  = 1 << 0
	dmaWrite = 1 << 1
)

// Which DMA addresses are used (ours): none below 64 KiB, where a null pointer of
// some driver points; those of an entry of the tables.
const (
	lowestAddress  = 64 << 10
	highestAddress = 1<<48 - 1
)

// addresses gives out DMA addresses in pieces of one size, what was given back last
type addresses struct {
	size uint64
	left []Range // never given out; First is a multiple of size
	back []uint64
}

func newAddresses(size uint64, usable []Range) *addresses {
	a := &addresses{size: size}
	for _, r := range usable {
		first, last := max(r.First, lowestAddress), min(r.Last, highestAddress)
		first = (first + size - 1) &^ (size - 1)
		if first <= last && last-first >= size-1 {
			a.left = append(a.left, Range{first, last})
		}
	}
	return a
}

// carve gives n bytes in one piece, for good.
func (a *addresses) carve(n uint64) (uint64, error) {
	n = (n + a.size - 1) &^ (a.size - 1)
	for i := range a.left {
		if r := &a.left[i]; r.First <= r.Last && r.Last-r.First >= n-1 {
			at := r.First
			r.First += n
			return at, nil
		}
	}
	return 0, fmt.Errorf("%w: no %d usable DMA addresses in one piece", ErrConfig, n)
}

// take gives a piece, if there is one.
func (a *addresses) take() (uint64, bool) {
	if n := len(a.back); n > 0 {
		at := a.back[n-1]
		a.back = a.back[:n-1]
		return at, true
	}
	for len(a.left) > 0 {
		r := &a.left[0]
		if r.First <= r.Last && r.Last-r.First >= a.size-1 {
			at := r.First
			r.First += a.size
			return at, true
		}
		a.left = a.left[1:]
	}
	return 0, false
}

func (a *addresses) give(at uint64) { a.back = append(a.back, at) }
