package mediate

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/shadow"
	"github.com/exanet/pfd/vfio/kernel"
	"github.com/exanet/pfd/vfio/uio"
)

// PCIVendor and PCIDevice are the identity of a node (spec/hardware.md 2); defined by this
// project.
const (
	PCIVendor = pciVendor
	PCIDevice = pciDevice
)

// retry is the time between two attempts to open a device; it is defined by this project.
const retry = 100 * time.Millisecond

// registers accesses the registers of a PCI function, or of a board, by loads and stores.
type registers interface {
	ID() uint32
	Read(window int, offset uint64, size int) (uint64, error)
	Post(window int, offset uint64, size int, value uint64) error
	Bytes(window int) []byte
	Done() <-chan struct{}
	Err() error
	Close()
}

// function is a node whose registers are mapped in this process.
type function struct {
	registers
	shadow.DMA
}

// VFIO opens the PCI function at an address through the kernel's VFIO; without an IOMMU only if
// bare is set. It waits for a function that was present once, and for one that another process
// has: after a process was killed, its kernel resets and unmaps the device with a delay. waiting,
// if it is not nil, is called with the cause before a wait.
func VFIO(addr string, bare bool, waiting func(error)) Connect {
	return again(waiting, func(vectors []int) (Function, error) {
		d, err := kernel.Open(addr, kernel.Options{NoIOMMU: bare})
		if err != nil {
			return nil, err
		}
		var dma shadow.DMA = pinned{d}
		if d.Via() == kernel.ViaNone {
			dma, err = newPhysical()
		}
		f := function{d, dma}
		if err == nil {
			err = f.check()
		}
		if err == nil {
			err = d.SetVectors(vectors)
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("device vfio:%s: %w", addr, err)
		}
		return f, nil
	})
}

// UIO opens a device of UIO by its name, such as uio0, or by the address of a PCI function. It
// has no vectors: its driver polls its queues in memory, or its registers. waiting is as for
// VFIO.
func UIO(name string, waiting func(error)) Connect {
	var windows []uio.Window
	for w := range device.Windows {
		windows = append(windows, uio.Window{Names: []string{"exanet-" + w.String(), w.String()}, Size: uint64(w.Size())})
	}
	return again(waiting, func([]int) (Function, error) {
		d, err := uio.Open(name, windows)
		if err != nil {
			return nil, err
		}
		dma, err := newPhysical()
		f := polled{function{d, dma}}
		if err == nil {
			err = f.check()
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("device uio:%s: %w", name, err)
		}
		return f, nil
	})
}

// again makes a Connect that waits for a device which was present once, or which another process
// has.
func again(waiting func(error), open func(vectors []int) (Function, error)) Connect {
	var seen atomic.Bool
	return func(ctx context.Context, vectors []int) (Function, error) {
		for told := waiting == nil; ; told = true {
			f, err := open(vectors)
			if err == nil {
				seen.Store(true)
				return f, nil
			}
			busy := errors.Is(err, kernel.ErrBusy) || errors.Is(err, uio.ErrBusy)
			removed := errors.Is(err, kernel.ErrNoDevice) || errors.Is(err, uio.ErrNoDevice) ||
				errors.Is(err, kernel.ErrGone) // of UIO, too
			if !busy && !(removed && seen.Load()) {
				return nil, err
			}
			if !told {
				waiting(err)
			}
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
			case <-time.After(retry):
			}
		}
	}
}

// check returns an error if the device is not a node. It checks the PCI identity or, for a board
// without one, the ID register (spec/hardware.md 3).
func (f function) check() error {
	if id := f.ID(); id != 0 && id != pciDevice<<16|pciVendor {
		return fmt.Errorf("%w: it is PCI device %04x:%04x, not %04x:%04x: exanetctl bind --all names those that are", ErrIdentity, id&0xffff, id>>16, pciVendor, pciDevice)
	}
	if v, err := f.Read(int(device.PL), device.PLID, 4); err != nil || v != device.IDValue {
		return errors.Join(fmt.Errorf("%w: its ID reads %#x", ErrIdentity, v), err)
	}
	if len(f.Bytes(int(device.BTCM))) < device.BTCMDoorbells {
		return fmt.Errorf("%w: its descriptors cannot be mapped: %w", ErrIdentity, syscall.ENOTSUP)
	}
	return nil
}

// Write is Post followed by a read: the device has received the store when the read completes
// (PCI 3.0, 3.2.5, "posted writes").
func (f function) Write(region int, offset uint64, size int, value uint64) error {
	err := f.Post(region, offset, size, value)
	if err == nil {
		_, err = f.Read(int(device.PL), device.PLID, 4)
	}
	return err
}

func (f function) Descriptors() []byte {
	return f.Bytes(int(device.BTCM))[:device.BTCMDoorbells]
}

// Close implements Function.
func (f function) Close() {
	f.registers.Close()
	if p, ok := f.DMA.(physical); ok && p.pagemap != nil {
		_ = p.pagemap.Close() // nothing was written through it
	}
}

// Address implements shadow.Physicist, for a device without an IOMMU.
func (f function) Address(b []byte) (uint64, error) {
	if p, ok := f.DMA.(physical); ok {
		return p.Address(b)
	}
	return 0, fmt.Errorf("%w: addresses are chosen", ErrConfig)
}

// pinned is shadow.DMA of a device behind an IOMMU.
type pinned struct{ *kernel.Device }

// Ranges implements shadow.DMA.
func (p pinned) Ranges() ([]shadow.Range, error) {
	list, err := p.Device.Ranges()
	usable := make([]shadow.Range, len(list))
	for i, r := range list {
		usable[i] = shadow.Range(r)
	}
	return usable, err
}

// Kind implements shadow.DMA.
func (pinned) Kind() shadow.Kind { return shadow.Pinned }
