package mediate

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/shadow"
	"github.com/exanet/pfd/vfio/kernel"
)

// PCIVendor and PCIDevice are the identity of a node (spec/hardware.md 2; ours).
const (
	PCIVendor = pciVendor
	PCIDevice = pciDevice
)

// retry is the time between two looks for a device (ours).
const retry = 100 * time.Millisecond

// kernelFunction is a node behind the kernel's VFIO.
type kernelFunction struct{ *kernel.Device }

// VFIO takes the PCI function at an address through the kernel's VFIO. One that
// was there once is waited for, and one that another process has: what a process
// held that was killed, its kernel resets and unmaps behind it.
func VFIO(addr string) Connect {
	var seen atomic.Bool
	return func(ctx context.Context, vectors []int) (Function, error) {
		for {
			f, err := openKernel(addr, vectors)
			if err == nil {
				seen.Store(true)
				return f, nil
			}
			removed := errors.Is(err, kernel.ErrNoDevice) || errors.Is(err, kernel.ErrGone)
			if !errors.Is(err, kernel.ErrBusy) && !(removed && seen.Load()) {
				return nil, err
			}
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
			case <-time.After(retry):
			}
		}
	}
}

func openKernel(addr string, vectors []int) (Function, error) {
	d, err := kernel.Open(addr, kernel.Options{})
	if err != nil {
		return nil, err
	}
	f := kernelFunction{d}
	if err := f.setUp(vectors); err != nil {
		d.Close()
		return nil, fmt.Errorf("device vfio:%s: %w", addr, err)
	}
	return f, nil
}

func (f kernelFunction) setUp(vectors []int) error {
	if id := f.ID(); id != pciDevice<<16|pciVendor {
		return fmt.Errorf("%w: it is PCI device %04x:%04x, not %04x:%04x: exanetctl bind --all names those that are", ErrIdentity, id&0xffff, id>>16, pciVendor, pciDevice)
	}
	if len(f.Bytes(int(device.BTCM))) < device.BTCMDoorbells {
		return fmt.Errorf("%w: its descriptors cannot be mapped: %w", ErrIdentity, syscall.ENOTSUP)
	}
	return f.SetVectors(vectors)
}

// Write is Post, and a read behind it: the device has taken the store when that
// comes back (PCI 3.0, 3.2.5, "posted writes").
func (f kernelFunction) Write(region int, offset uint64, size int, value uint64) error {
	err := f.Post(region, offset, size, value)
	if err == nil {
		_, err = f.Read(int(device.PL), device.PLID, 4)
	}
	return err
}

// Ranges implements shadow.DMA.
func (f kernelFunction) Ranges() ([]shadow.Range, error) {
	list, err := f.Device.Ranges()
	usable := make([]shadow.Range, len(list))
	for i, r := range list {
		usable[i] = shadow.Range(r)
	}
	return usable, err
}

// Kind implements shadow.DMA.
func (f kernelFunction) Kind() shadow.Kind { return shadow.Pinned }

func (f kernelFunction) Descriptors() []byte {
	return f.Bytes(int(device.BTCM))[:device.BTCMDoorbells]
}
