package shadow

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/memfd"
)

// Own is memory of this process that a device uses: a memfd that no other process can shrink.
type Own struct {
	FD   int
	B    []byte
	Addr uint64 // its physical address if the device uses those; else 0, and nothing is mapped yet
}

// NewOwn makes memory for a device. If the device uses physical addresses it is one huge page,
// and present.
func NewOwn(dma DMA, name string, size int) (*Own, error) {
	o := &Own{FD: -1}
	if err := o.make(dma, name, size); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

func (o *Own) make(dma DMA, name string, size int) error {
	flags := 0
	physicist, physical := dma.(Physicist)
	if physical = physical && dma.Kind() == Physical; physical {
		if size > hugePage {
			return fmt.Errorf("%w: %d bytes in one piece, at most %d", ErrConfig, size, hugePage)
		}
		size, flags = hugePage, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB
	}
	var err error
	if o.FD, err = memfd.New(name, int64(size), flags, unix.F_SEAL_SEAL); err != nil {
		return err
	}
	reserve := unix.MAP_NORESERVE
	if physical {
		reserve = unix.MAP_POPULATE
	}
	b, err := unix.Mmap(o.FD, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|reserve)
	switch {
	case err != nil && physical:
		return fmt.Errorf("a huge page of %d bytes: %w: echo 64 >/proc/sys/vm/nr_hugepages", size, os.NewSyscallError("mmap", err))
	case err != nil:
		return os.NewSyscallError("mmap", err)
	}
	o.B = b
	if physical {
		o.Addr, err = physicist.Address(b)
	}
	return err
}

// Close releases the memory. The device must not use it any more.
func (o *Own) Close() error {
	var errs []error
	if o.B != nil {
		errs = append(errs, os.NewSyscallError("munmap", unix.Munmap(o.B)))
	}
	if o.FD >= 0 {
		errs = append(errs, os.NewSyscallError("close", unix.Close(o.FD)))
	}
	o.B, o.FD = nil, -1
	return errors.Join(errs...)
}
