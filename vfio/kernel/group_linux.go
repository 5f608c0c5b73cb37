package kernel

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// ioctls of a container and of a group: _IO(';', 100 + n) (linux/vfio.h).
const (
	getAPIVersion     = ';'<<8 | 100 + 0
	checkExtension    = ';'<<8 | 100 + 1
	setIOMMU          = ';'<<8 | 100 + 2
	groupGetStatus    = ';'<<8 | 100 + 3
	groupSetContainer = ';'<<8 | 100 + 4
	groupGetDeviceFD  = ';'<<8 | 100 + 6
	mapDMA            = ';'<<8 | 100 + 13
	unmapDMA          = ';'<<8 | 100 + 14

	apiVersion  = 0
	typeIOMMUv2 = 3      // VFIO_TYPE1v2_IOMMU: an unmap removes all mappings inside its range
	typeNone    = 8      // VFIO_NOIOMMU_IOMMU: maps nothing
	groupViable = 1 << 0 // VFIO_GROUP_FLAGS_VIABLE
)

// iommu is the interface to the device's address space.
type iommu interface {
	mapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error
	unmapDMA(addr, size uint64) error
	ranges() ([]Range, error)
	close()
}

// container is an address space of type 1. It maps addresses of this process, so memory for the
// device is mapped in this process as well.
type container struct {
	fd, group int
	mu        sync.Mutex
	here      map[uint64][]byte // by DMA address
}

// openGroup opens a device by its group.
func openGroup(addr string, p place) (int, iommu, error) {
	if p.group == "" {
		return -1, nil, ErrNoIOMMU
	}
	if !exists("/dev/vfio/vfio") {
		return -1, nil, ErrModules
	}
	c := &container{fd: -1, group: -1, here: map[uint64][]byte{}}
	fd, err := c.open(addr, p)
	if err != nil {
		c.close()
		return -1, nil, err
	}
	return fd, c, nil
}

func (c *container) open(addr string, p place) (int, error) {
	var err error
	if c.fd, err = open("/dev/vfio/vfio"); err != nil {
		return -1, err
	}
	if v, err := ioctlWord(c.fd, getAPIVersion, 0); err != nil || v != apiVersion {
		return -1, fmt.Errorf("VFIO version %d: %w", v, errors.Join(ErrUnsupported, err))
	}
	kind := uintptr(typeIOMMUv2)
	if p.bare {
		kind = typeNone
	}
	if v, err := ioctlWord(c.fd, checkExtension, kind); err != nil || v == 0 {
		return -1, errors.Join(fmt.Errorf("VFIO without type 1: %w", ErrModules), err)
	}
	if c.group, err = open(p.file()); err != nil {
		return -1, err
	}
	status := make([]byte, 8) // struct vfio_group_status
	order.PutUint32(status, uint32(len(status)))
	if _, err := ioctl(c.group, groupGetStatus, status); err != nil {
		return -1, fmt.Errorf("state of group %s: %w", p.group, err)
	}
	if order.Uint32(status[4:])&groupViable == 0 {
		return -1, ErrNotViable
	}
	container := make([]byte, 4)
	order.PutUint32(container, uint32(c.fd))
	if _, err := ioctl(c.group, groupSetContainer, container); err != nil {
		return -1, fmt.Errorf("container of group %s: %w", p.group, err)
	}
	if _, err := ioctlWord(c.fd, setIOMMU, kind); err != nil {
		return -1, fmt.Errorf("type 1 for group %s: %w", p.group, err)
	}
	fd, err := ioctl(c.group, groupGetDeviceFD, append([]byte(addr), 0))
	if err != nil {
		return -1, fmt.Errorf("device of group %s: %w", p.group, err)
	}
	return fd, nil
}

func (c *container) mapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error {
	b, err := mapHere(size, fd, offset, rights)
	if err != nil {
		return err
	}
	arg := make([]byte, 32) // struct vfio_iommu_type1_dma_map
	order.PutUint32(arg, uint32(len(arg)))
	order.PutUint32(arg[4:], rights&(dmaRead|dmaWrite))
	order.PutUint64(arg[8:], address(b))
	order.PutUint64(arg[16:], addr)
	order.PutUint64(arg[24:], size)
	if _, err := ioctl(c.fd, mapDMA, arg); err != nil {
		return errors.Join(err, unix.Munmap(b))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.here[addr] = b
	return nil
}

// Rights of a mapping (linux/vfio.h, VFIO_DMA_MAP_FLAG_*).
const (
	dmaRead  = 1 << 0
	dmaWrite = 1 << 1
)

func mapHere(size uint64, fd int, offset uint64, rights uint32) ([]byte, error) {
	prot := unix.PROT_READ
	if rights&dmaWrite != 0 {
		prot |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(fd, int64(offset), int(size), prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of the file: %w", size, err)
	}
	return b, nil
}

func (c *container) unmapDMA(addr, size uint64) error {
	arg := make([]byte, 24) // struct vfio_iommu_type1_dma_unmap
	order.PutUint32(arg, uint32(len(arg)))
	order.PutUint64(arg[8:], addr)
	order.PutUint64(arg[16:], size)
	if _, err := ioctl(c.fd, unmapDMA, arg); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.here[addr]; uint64(len(b)) == size {
		delete(c.here, addr)
		return unix.Munmap(b)
	}
	for a, b := range c.here {
		if a >= addr && a-addr < size {
			delete(c.here, a)
			if err := unix.Munmap(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// close removes all mappings; the device's file is already closed.
func (c *container) close() {
	closeAll(c.group, c.fd)
	for _, b := range c.here {
		_ = unix.Munmap(b) // cannot fail: unmaps exactly what was mapped
	}
	c.here = nil
}
