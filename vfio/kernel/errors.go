package kernel

import (
	"errors"

	"github.com/exanet/pfd/internal/mmio"
)

// Errors of this package, for errors.Is.
var (
	// ErrGone reports that the device no longer answers, or that its kernel wants it back.
	ErrGone = mmio.ErrGone
	// ErrNoDevice reports that no PCI function has the address.
	ErrNoDevice = errors.New("no such PCI device")
	// ErrAddress reports that a text is not the address of a PCI function.
	ErrAddress = errors.New("not a PCI address")
	// ErrUnbound reports that the device has another driver, or none.
	ErrUnbound = errors.New("not bound to vfio-pci")
	// ErrNoIOMMU reports that the device has no IOMMU.
	ErrNoIOMMU = errors.New("no IOMMU")
	// ErrNotViable reports that a device of the same group has another driver.
	ErrNotViable = errors.New("its IOMMU group is not viable")
	// ErrBusy reports that another process uses the device.
	ErrBusy = errors.New("another process has the device")
	// ErrPermission reports that this user may not use the device.
	ErrPermission = errors.New("no permission")
	// ErrMemlock reports that the process has reached its limit of locked memory.
	ErrMemlock = errors.New("the limit of locked memory is reached")
	// ErrModules reports that the kernel has no VFIO, or has not loaded it.
	ErrModules = errors.New("the kernel's VFIO is not loaded")
	// ErrUnsupported reports that the device or the kernel lacks a needed function.
	ErrUnsupported = errors.New("not supported")
)

// Error is a problem of a device, with a remedy.
type Error = mmio.Error
