package uio

import (
	"errors"

	"github.com/exanet/pfd/internal/mmio"
)

// What can go wrong, matched by errors.Is.
var (
	// ErrGone says that the device does not answer any more.
	ErrGone = mmio.ErrGone
	// ErrName says that a text is neither a UIO device nor a PCI address.
	ErrName = errors.New("not a UIO device")
	// ErrNoDevice says that there is no such device.
	ErrNoDevice = errors.New("no such device")
	// ErrModule says that the driver that makes UIO devices is not loaded.
	ErrModule = errors.New("UIO's driver is not loaded")
	// ErrUnbound says that another driver has the function, or none.
	ErrUnbound = errors.New("not bound to a UIO driver")
	// ErrBusy says that another process has the device.
	ErrBusy = errors.New("another process has the device")
	// ErrPermission says that this user may not use the device.
	ErrPermission = errors.New("no permission")
	// ErrWindows says that a device does not have the windows that were asked for.
	ErrWindows = errors.New("the device's windows are not there")
	// ErrIOMMU says that an IOMMU translates what the device accesses.
	ErrIOMMU = errors.New("an IOMMU stands before the device: UIO maps nothing in it")
)

// Error is a trouble with a device, and what settles it.
type Error = mmio.Error
