package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ioctls of a device file: _IO(';', 100 + n) (linux/vfio.h).
const (
	deviceBindIOMMUFD   = ';'<<8 | 100 + 18
	deviceAttachIOMMUFD = ';'<<8 | 100 + 19
)

// ioctls of /dev/iommu: _IO(';', 0x80 + n) (linux/iommufd.h).
const (
	ioasAlloc   = ';'<<8 | 0x81
	ioasMap     = ';'<<8 | 0x85
	ioasUnmap   = ';'<<8 | 0x86
	ioasMapFile = ';'<<8 | 0x8f

	// enum iommufd_ioas_map_flags.
	mapFixed     = 1 << 0
	mapWriteable = 1 << 1
	mapReadable  = 1 << 2
)

// ioas is an address space of iommufd. If the kernel can (Linux 6.13), it pins pages of a file
// without mapping them in this process.
type ioas struct {
	fd    int
	id    uint32
	files bool // IOMMU_IOAS_MAP_FILE
}

// openCdev opens a device by its device file.
func openCdev(p place) (dev int, i iommu, err error) {
	s := &ioas{fd: -1, files: true}
	dev = -1
	defer func() {
		if err != nil {
			closeAll(dev)
			s.close()
			dev, i = -1, nil
		}
	}()
	if dev, err = open(p.cdev); err != nil {
		return dev, nil, err
	}
	if s.fd, err = open("/dev/iommu"); err != nil {
		return dev, nil, err
	}
	arg := make([]byte, 16) // struct vfio_device_bind_iommufd
	order.PutUint32(arg, uint32(len(arg)))
	order.PutUint32(arg[8:], uint32(s.fd))
	if _, err = ioctl(dev, deviceBindIOMMUFD, arg); err != nil {
		return dev, nil, fmt.Errorf("binding the device to iommufd: %w", err)
	}
	arg = make([]byte, 12) // struct iommu_ioas_alloc
	order.PutUint32(arg, uint32(len(arg)))
	if _, err = ioctl(s.fd, ioasAlloc, arg); err != nil {
		return dev, nil, fmt.Errorf("address space of iommufd: %w", err)
	}
	s.id = order.Uint32(arg[8:])
	arg = make([]byte, 12) // struct vfio_device_attach_iommufd_pt
	order.PutUint32(arg, uint32(len(arg)))
	order.PutUint32(arg[8:], s.id)
	if _, err = ioctl(dev, deviceAttachIOMMUFD, arg); err != nil {
		return dev, nil, fmt.Errorf("attaching the device to its address space: %w", err)
	}
	return dev, s, nil
}

func (s *ioas) mapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error {
	flags := uint32(mapFixed)
	if rights&dmaRead != 0 {
		flags |= mapReadable
	}
	if rights&dmaWrite != 0 {
		flags |= mapWriteable
	}
	arg := make([]byte, 40) // struct iommu_ioas_map_file, struct iommu_ioas_map
	order.PutUint32(arg, uint32(len(arg)))
	order.PutUint32(arg[4:], flags)
	order.PutUint32(arg[8:], s.id)
	order.PutUint64(arg[24:], size)
	order.PutUint64(arg[32:], addr)
	if s.files {
		order.PutUint32(arg[12:], uint32(fd))
		order.PutUint64(arg[16:], offset)
		_, err := ioctl(s.fd, ioasMapFile, arg)
		if !errors.Is(err, unix.ENOTTY) && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		s.files = false // permanently: the kernel is older
		order.PutUint32(arg[12:], 0)
	}
	b, err := mapHere(size, fd, offset, rights)
	if err != nil {
		return err
	}
	order.PutUint64(arg[16:], address(b))
	_, err = ioctl(s.fd, ioasMap, arg)
	// The pages stay pinned without the mapping in this process.
	return errors.Join(err, unix.Munmap(b))
}

func (s *ioas) unmapDMA(addr, size uint64) error {
	arg := make([]byte, 24) // struct iommu_ioas_unmap
	order.PutUint32(arg, uint32(len(arg)))
	order.PutUint32(arg[4:], s.id)
	order.PutUint64(arg[8:], addr)
	order.PutUint64(arg[16:], size)
	if _, err := ioctl(s.fd, ioasUnmap, arg); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

func (s *ioas) close() { closeAll(s.fd) }
