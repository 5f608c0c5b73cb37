package kernel

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Range is the DMA addresses from First to Last, inclusive.
type Range struct{ First, Last uint64 }

const (
	iommuGetInfo   = ';'<<8 | 100 + 12 // linux/vfio.h
	ioasIOVARanges = ';'<<8 | 0x84     // linux/iommufd.h

	infoSize    = 24     // struct vfio_iommu_type1_info
	infoCaps    = 1 << 1 // VFIO_IOMMU_INFO_CAPS
	capRanges   = 1      // VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE
	maxInfo     = 64 << 10
	maxRanges   = 256 // requested from iommufd; defined by this project: architectures have a few
	rangeSize   = 16
	rangeHeader = 16 // struct vfio_iommu_type1_info_cap_iova_range, before its ranges
)

var errInfo = errors.New("the kernel's answer about its IOMMU does not match linux/vfio.h")

// ranges implements iommu by VFIO_IOMMU_GET_INFO. If the kernel does not report the ranges
// (before 5.7) all addresses count as usable, and a map may be refused.
func (c *container) ranges() ([]Range, error) {
	arg := make([]byte, infoSize)
	for {
		order.PutUint32(arg, uint32(len(arg)))
		if _, err := ioctl(c.fd, iommuGetInfo, arg); err != nil {
			return nil, fmt.Errorf("usable DMA addresses: %w", err)
		}
		want := order.Uint32(arg)
		if want <= uint32(len(arg)) {
			break
		}
		if want > maxInfo {
			return nil, errInfo
		}
		arg = make([]byte, want)
	}
	return decodeRanges(arg)
}

// decodeRanges decodes the ranges in a struct vfio_iommu_type1_info and the capabilities after
// it.
func decodeRanges(info []byte) ([]Range, error) {
	if len(info) < infoSize {
		return nil, errInfo
	}
	all := []Range{{0, ^uint64(0)}}
	if order.Uint32(info[4:])&infoCaps == 0 {
		return all, nil
	}
	last := 0
	for at := int(order.Uint32(info[16:])); at != 0; at = int(order.Uint32(info[at+4:])) {
		if at <= last || at+8 > len(info) { // struct vfio_info_cap_header; the offsets of a chain must increase
			return nil, errInfo
		}
		last = at
		if order.Uint16(info[at:]) != capRanges {
			continue
		}
		if at+rangeHeader > len(info) {
			return nil, errInfo
		}
		n := int(order.Uint32(info[at+8:]))
		if n > (len(info)-at-rangeHeader)/rangeSize {
			return nil, errInfo
		}
		return readRanges(info[at+rangeHeader:], n), nil
	}
	return all, nil
}

func readRanges(b []byte, n int) []Range {
	r := make([]Range, n)
	for i := range r {
		r[i] = Range{order.Uint64(b[i*rangeSize:]), order.Uint64(b[i*rangeSize+8:])}
	}
	return r
}

// ranges implements iommu by IOMMU_IOAS_IOVA_RANGES.
func (s *ioas) ranges() ([]Range, error) {
	list := make([]byte, maxRanges*rangeSize)
	var pin runtime.Pinner
	pin.Pin(&list[0])
	defer pin.Unpin()
	arg := make([]byte, 32) // struct iommu_ioas_iova_ranges
	order.PutUint32(arg, uint32(len(arg)))
	order.PutUint32(arg[4:], s.id)
	order.PutUint32(arg[8:], maxRanges)
	order.PutUint64(arg[16:], address(list))
	// EMSGSIZE: there are more ranges; these suffice.
	if _, err := ioctl(s.fd, ioasIOVARanges, arg); err != nil && !errors.Is(err, unix.EMSGSIZE) {
		return nil, fmt.Errorf("usable DMA addresses: %w", err)
	}
	return readRanges(list, int(min(order.Uint32(arg[8:]), maxRanges))), nil
}

// Ranges returns the DMA addresses that may be mapped, in ascending order.
func (d *Device) Ranges() ([]Range, error) { return d.iommu.ranges() }
