package kernel

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/mmio"
)

// ioctls of a device: _IO(';', 100 + n) (linux/vfio.h).
const (
	deviceGetInfo       = ';'<<8 | 100 + 7
	deviceGetRegionInfo = ';'<<8 | 100 + 8
	deviceGetIRQInfo    = ';'<<8 | 100 + 9
	deviceSetIRQs       = ';'<<8 | 100 + 10
	deviceReset         = ';'<<8 | 100 + 11
)

// Flags and indexes (linux/vfio.h).
const (
	flagReset = 1 << 0 // VFIO_DEVICE_FLAGS_RESET
	flagPCI   = 1 << 1 // VFIO_DEVICE_FLAGS_PCI

	regionRead  = 1 << 0 // VFIO_REGION_INFO_FLAG_READ
	regionWrite = 1 << 1
	regionMmap  = 1 << 2

	// RegionConfig is the function's configuration space; 0 to 5 are its BARs
	// (VFIO_PCI_CONFIG_REGION_INDEX).
	RegionConfig = 7
	bars         = 6

	irqMSIX    = 2 // VFIO_PCI_MSIX_IRQ_INDEX
	irqErr     = 3 // VFIO_PCI_ERR_IRQ_INDEX
	irqRequest = 4 // VFIO_PCI_REQ_IRQ_INDEX

	irqEventFD = 1<<2 | 1<<5 // VFIO_IRQ_SET_DATA_EVENTFD | ACTION_TRIGGER
)

// Configuration space (PCI 3.0, 6.2).
const (
	configID      = 0
	configCommand = 4
	// Bits of the command register.
	commandMemory = 1 << 1
	commandMaster = 1 << 2
)

// region is a BAR, or the configuration space.
type region struct {
	flags        uint32
	size, offset uint64 // offset in the device's file
	b            []byte // the mapping; nil: use pread and pwrite
}

// Device is a PCI function. Its methods are safe for concurrent use, except Close; the result
// of Bytes must not be used after Close.
type Device struct {
	address string
	fd      int
	iommu   iommu
	via     string
	id      uint64
	regions [RegionConfig + 1]region

	watch [3]int // eventfds: an error, a request to release the device, the end of the watcher
	wg    sync.WaitGroup
	end   *mmio.End
}

// Options of Open.
type Options struct {
	// NoIOMMU also accepts a device without an IOMMU (enable_unsafe_noiommu_mode): it accesses
	// all memory at physical addresses, and no memory is mapped for it.
	NoIOMMU bool
}

// Open opens the function at a PCI address, as 0000:01:00.0, resets it, and enables its memory
// and bus mastering. Errors are *Error and match those of this package.
func Open(addr string, o Options) (*Device, error) {
	d := &Device{address: addr, fd: -1, watch: [3]int{-1, -1, -1}, end: mmio.NewEnd("vfio " + addr)}
	err := d.open(o)
	if err == nil {
		err = d.setUp()
	}
	if err != nil {
		d.Close()
		return nil, explain("/", addr, err)
	}
	return d, nil
}

// open opens the device by the first available interface.
func (d *Device) open(o Options) error {
	place, err := find("/", d.address)
	if err != nil {
		return err
	}
	if place.cdev != "" && !place.bare && exists("/dev/iommu") {
		d.via = "iommufd"
		d.fd, d.iommu, err = openCdev(place)
		return err
	}
	if place.bare && !o.NoIOMMU {
		return ErrNoIOMMU
	}
	if d.via = "group"; place.bare {
		d.via = ViaNone
	}
	d.fd, d.iommu, err = openGroup(d.address, place)
	return err
}

// ViaNone is the result of Via for a device without an IOMMU.
const ViaNone = "noiommu"

// Via returns how the device was opened: iommufd, group or ViaNone.
func (d *Device) Via() string { return d.via }

// setUp queries the device and makes it ready.
func (d *Device) setUp() error {
	info := make([]byte, 24) // struct vfio_device_info
	order.PutUint32(info, uint32(len(info)))
	if _, err := ioctl(d.fd, deviceGetInfo, info); err != nil {
		return fmt.Errorf("querying the device: %w", err)
	}
	flags := order.Uint32(info[4:])
	if flags&flagPCI == 0 || order.Uint32(info[8:]) <= RegionConfig {
		return fmt.Errorf("a VFIO device that is not a PCI function: %w", ErrUnsupported)
	}
	if flags&flagReset != 0 {
		if _, err := ioctlWord(d.fd, deviceReset, 0); err != nil {
			return fmt.Errorf("reset: %w", err)
		}
	}
	for i := range d.regions {
		if err := d.region(i); err != nil {
			return err
		}
	}
	var err error
	if d.id, err = d.config(configID, 4); err != nil {
		return err
	}
	command, err := d.config(configCommand, 2)
	if err == nil {
		err = d.pwrite(RegionConfig, configCommand, 2, command|commandMemory|commandMaster)
	}
	if err != nil {
		return err
	}
	for i := range bars {
		d.mmap(i)
	}
	return d.listen()
}

// region queries a region.
func (d *Device) region(i int) error {
	b := make([]byte, 32) // struct vfio_region_info
	order.PutUint32(b, uint32(len(b)))
	order.PutUint32(b[8:], uint32(i))
	if _, err := ioctl(d.fd, deviceGetRegionInfo, b); err != nil {
		return fmt.Errorf("region %d: %w", i, err)
	}
	d.regions[i] = region{flags: order.Uint32(b[4:]), size: order.Uint64(b[16:]), offset: order.Uint64(b[24:])}
	return nil
}

// mmap maps a BAR if the kernel permits mapping it as a whole.
func (d *Device) mmap(i int) {
	r := &d.regions[i]
	if r.size == 0 || r.flags&regionMmap == 0 {
		return
	}
	if b, err := unix.Mmap(d.fd, int64(r.offset), int(r.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		r.b = b // otherwise pread and pwrite are used
	}
}

// ID returns the vendor in [15:0] and the device in [31:16].
func (d *Device) ID() uint32 { return uint32(d.id) }

// Bytes returns a mapped BAR, or nil if it is not mapped.
func (d *Device) Bytes(i int) []byte { return d.regions[i].b }

// access returns an error for an access outside a region.
func (d *Device) access(i int, off uint64, size int) (*region, error) {
	if i < 0 || i >= len(d.regions) || size < 1 || size > 8 || size&(size-1) != 0 {
		return nil, fmt.Errorf("vfio %s: access of %d bytes to region %d: %w", d.address, size, i, unix.EINVAL)
	}
	r := &d.regions[i]
	if off%uint64(size) != 0 || off >= r.size || r.size-off < uint64(size) {
		return nil, fmt.Errorf("vfio %s: access of %d bytes at %#x of region %d, which has %d: %w", d.address, size, off, i, r.size, unix.EINVAL)
	}
	return r, nil
}

// Read performs one load of size bytes (1, 2, 4 or 8) from a region. If it reads all ones, Read
// checks whether the device is gone: a removed device reads so.
func (d *Device) Read(i int, off uint64, size int) (uint64, error) {
	r, err := d.access(i, off, size)
	if err != nil {
		return 0, err
	}
	if err := d.Err(); err != nil {
		return 0, err
	}
	var v uint64
	if r.b != nil {
		v, err = mmio.Load(r.b, off, size)
	} else {
		v, err = d.pread(i, off, size)
	}
	if err != nil {
		return 0, d.end.Fail(fmt.Errorf("read region %d, %#x: %w", i, off, err))
	}
	if i != RegionConfig && v == ^uint64(0)>>(64-8*size) {
		id, err := d.config(configID, 4)
		if err != nil || id == 1<<32-1 {
			return 0, d.end.Fail(errors.Join(errors.New("its identity reads all ones"), err))
		}
	}
	return v, nil
}

// Post performs one store, which the device may execute later; it is complete before a later
// read returns.
func (d *Device) Post(i int, off uint64, size int, v uint64) error {
	r, err := d.access(i, off, size)
	if err != nil {
		return err
	}
	if err := d.Err(); err != nil {
		return err
	}
	if r.b != nil {
		err = mmio.Store(r.b, off, size, v)
	} else {
		err = d.pwrite(i, off, size, v)
	}
	if err != nil {
		return d.end.Fail(fmt.Errorf("write region %d, %#x: %w", i, off, err))
	}
	return nil
}

func (d *Device) config(off uint64, size int) (uint64, error) {
	return d.pread(RegionConfig, off, size)
}

func (d *Device) pread(i int, off uint64, size int) (uint64, error) {
	var b [8]byte
	n, err := unix.Pread(d.fd, b[:size], int64(d.regions[i].offset+off))
	if err == nil && n != size {
		err = unix.EIO
	}
	if err != nil {
		return 0, fmt.Errorf("region %d, %#x: %w", i, off, err)
	}
	return order.Uint64(b[:]), nil
}

func (d *Device) pwrite(i int, off uint64, size int, v uint64) error {
	var b [8]byte
	order.PutUint64(b[:], v)
	n, err := unix.Pwrite(d.fd, b[:size], int64(d.regions[i].offset+off))
	if err == nil && n != size {
		err = unix.EIO
	}
	if err != nil {
		return fmt.Errorf("region %d, %#x: %w", i, off, err)
	}
	return nil
}

// MapDMA maps size bytes of a file, from offset on, at a DMA address for the device; the pages
// are paged in and pinned. Rights are those of VFIO_IOMMU_MAP_DMA.
func (d *Device) MapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error {
	if err := d.iommu.mapDMA(addr, size, fd, offset, rights); err != nil {
		return explain("/", d.address, fmt.Errorf("map DMA %#x+%#x: %w", addr, size, memlock(err)))
	}
	return nil
}

// UnmapDMA removes all mappings inside a range, if any.
func (d *Device) UnmapDMA(addr, size uint64) error {
	if err := d.iommu.unmapDMA(addr, size); err != nil {
		return explain("/", d.address, fmt.Errorf("unmap DMA %#x+%#x: %w", addr, size, err))
	}
	return nil
}

// SetVectors connects the first MSI-X vectors to eventfds.
func (d *Device) SetVectors(fds []int) error { return d.setIRQs(irqMSIX, fds) }

func (d *Device) setIRQs(index uint32, fds []int) error {
	b := make([]byte, 20, 20+4*len(fds)) // struct vfio_irq_set
	order.PutUint32(b[4:], irqEventFD)
	order.PutUint32(b[8:], index)
	order.PutUint32(b[16:], uint32(len(fds)))
	for _, fd := range fds {
		b = order.AppendUint32(b, uint32(int32(fd)))
	}
	order.PutUint32(b, uint32(len(b)))
	if _, err := ioctl(d.fd, deviceSetIRQs, b); err != nil {
		return explain("/", d.address, fmt.Errorf("interrupts of index %d: %w", index, err))
	}
	return nil
}

// hasIRQ reports whether the device has interrupts of an index.
func (d *Device) hasIRQ(index uint32) bool {
	b := make([]byte, 16) // struct vfio_irq_info
	order.PutUint32(b, uint32(len(b)))
	order.PutUint32(b[8:], index)
	_, err := ioctl(d.fd, deviceGetIRQInfo, b)
	return err == nil && order.Uint32(b[12:]) > 0
}

// listen watches for an error of the device, and for the kernel's request to release it.
func (d *Device) listen() error {
	for i := range d.watch {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			return fmt.Errorf("eventfd: %w", err)
		}
		d.watch[i] = fd
	}
	for i, index := range []uint32{irqErr, irqRequest} {
		if d.hasIRQ(index) {
			if err := d.setIRQs(index, d.watch[i:i+1]); err != nil {
				return err
			}
		}
	}
	d.wg.Go(func() {
		poll := []unix.PollFd{{Fd: int32(d.watch[0]), Events: unix.POLLIN}, {Fd: int32(d.watch[1]), Events: unix.POLLIN}, {Fd: int32(d.watch[2]), Events: unix.POLLIN}}
		for {
			if _, err := unix.Poll(poll, -1); errors.Is(err, unix.EINTR) {
				continue
			}
			switch {
			case poll[2].Revents != 0: // Close
			case poll[0].Revents != 0:
				_ = d.end.Fail(errors.New("PCI reports an error of the device"))
			default:
				_ = d.end.Fail(errors.New("the device is being removed or unbound"))
			}
			return
		}
	})
	return nil
}

// Done returns a channel that is closed when the device is gone; Err then returns why.
func (d *Device) Done() <-chan struct{} { return d.end.Done() }

// Err returns why the device is gone, or nil if it is not. It matches ErrGone.
func (d *Device) Err() error { return d.end.Err() }

// Close releases the device: the kernel resets it and removes its mappings.
func (d *Device) Close() {
	_ = d.end.Fail(errors.New("closed"))
	if d.watch[2] >= 0 {
		one := [8]byte{1}
		_, _ = unix.Write(d.watch[2], one[:]) // cannot fail: the eventfd is empty
		d.wg.Wait()
	}
	for i := range d.regions {
		if b := d.regions[i].b; b != nil {
			_ = unix.Munmap(b) // cannot fail: unmaps exactly what was mapped
			d.regions[i].b = nil
		}
	}
	closeAll(d.fd)
	if d.iommu != nil {
		d.iommu.close()
	}
	closeAll(d.watch[:]...)
	d.fd, d.iommu, d.watch = -1, nil, [3]int{-1, -1, -1}
}
