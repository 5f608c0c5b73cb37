package kernel

import (
	"errors"

	"github.com/exanet/pfd/internal/mmio"
)

// What can go wrong, matched by errors.Is.
var (
	// ErrGone says that the device does not answer any more, or that its kernel
	// wants it back.
	ErrGone = mmio.ErrGone
	// ErrNoDevice says that no PCI function has the address.
	ErrNoDevice = errors.New("no such PCI device")
	// ErrAddress says that a text is no address of a PCI function.
	ErrAddress = errors.New("not a PCI address")
	// ErrUnbound says that another driver has the device, or none.
	ErrUnbound = errors.New("not bound to vfio-pci")
	// ErrNoIOMMU says that no IOMMU stands before the device.
	ErrNoIOMMU = errors.New("no IOMMU")
	// ErrNotViable says that a device of the same group has another driver.
	ErrNotViable = errors.New("its IOMMU group is not viable")
	// ErrBusy says that another process has the device.
	ErrBusy = errors.New("another process has the device")
	// ErrPermission says that this user may not use the device.
	ErrPermission = errors.New("no permission")
	// ErrMemlock says that the process may not pin as much.
	ErrMemlock = errors.New("the limit of locked memory is reached")
	// ErrModules says that the kernel has no VFIO, or has not loaded it.
	ErrModules = errors.New("the kernel's VFIO is not loaded")
	// ErrUnsupported says that a device, or this kernel, does not do what is needed.
	ErrUnsupported = errors.New("not supported")
)

// Error is a trouble with a device, and what settles it.
type Error = mmio.Error
