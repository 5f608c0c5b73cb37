package shadow

import "fmt"

// Range is the range of DMA addresses from First to Last.
type Range struct{ First, Last uint64 }

// Kind is the effect of a mapping on the memory that it maps.
type Kind uint8

const (
	// Files: the device is another process that maps the same files. Nothing is pinned, and pages
	// may become absent at any time (vfio-user).
	Files Kind = iota
	// Pinned: a mapping pins its memory and counts it in VmLck or VmPin (VFIO_IOMMU_MAP_DMA,
	// IOMMU_IOAS_MAP).
	Pinned
	// Physical: addresses are physical ones, and nothing is pinned (no-IOMMU, UIO). The DMA is a
	// Physicist, whose MapDMA and UnmapDMA do nothing.
	Physical
)

// Physicist is a DMA of kind Physical.
type Physicist interface {
	DMA
	// Address returns the physical address of the first byte of memory of this process. The page
	// is present.
	Address(b []byte) (uint64, error)
}

// DMA maps pieces of memfds at DMA addresses for a device. It is safe for concurrent use.
type DMA interface {
	// Ranges returns the addresses that may be used, in ascending order
	// (VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, IOMMU_IOAS_IOVA_RANGES).
	Ranges() ([]Range, error)
	Kind() Kind
	// MapDMA maps a part of a memfd at an address. Rights are those of
	// linux/vfio.h, VFIO_IOMMU_MAP_DMA.
	MapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error
	// UnmapDMA removes every mapping inside a range. No mapping may cross its ends
	// (VFIO_TYPE1v2_IOMMU).
	UnmapDMA(addr, size uint64) error
}

// Awaiter is a DMA whose MapDMA may return before the device has the mapping. A command that
// reaches the device another way may then come before it.
type Awaiter interface {
	DMA
	// Await makes the next MapDMA return only when the device has the mapping.
	Await()
}

// Rights of a mapping (linux/vfio.h, VFIO_DMA_MAP_FLAG_*).
const (
	dmaRead  = 1 << 0
	dmaWrite = 1 << 1
)

// Which DMA addresses are used: none below 64 KiB, where a driver's null pointer may point; and
// none that a table entry cannot hold. Values below are defined by this project.
const (
	lowestAddress  = 64 << 10
	highestAddress = 1<<48 - 1
)

// addresses allocates DMA addresses in pieces of one size. The piece that was freed last is
// allocated first.
type addresses struct {
	size uint64
	left []Range // never allocated; First is a multiple of size
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

// carve allocates n bytes in one piece, permanently.
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

// take returns a free piece, if there is one.
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
