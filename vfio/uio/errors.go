package uio

import (
	"errors"

	"github.com/exanet/pfd/internal/mmio"
)

// Errors of this package, for errors.Is.
var (
	// ErrGone reports that the device no longer answers.
	ErrGone = mmio.ErrGone
	// ErrName reports that a text is neither a UIO device nor a PCI address.
	ErrName = errors.New("not a UIO device")
	// ErrNoDevice reports that the device does not exist.
	ErrNoDevice = errors.New("no such device")
	// ErrModule reports that the driver that creates UIO devices is not loaded.
	ErrModule = errors.New("UIO's driver is not loaded")
	// ErrUnbound reports that the function has another driver, or none.
	ErrUnbound = errors.New("not bound to a UIO driver")
	// ErrBusy reports that another process uses the device.
	ErrBusy = errors.New("another process has the device")
	// ErrPermission reports that this user may not use the device.
	ErrPermission = errors.New("no permission")
	// ErrWindows reports that a device lacks the requested windows.
	ErrWindows = errors.New("the device's windows are not there")
	// ErrIOMMU reports that an IOMMU translates the device's accesses.
	ErrIOMMU = errors.New("an IOMMU stands before the device: UIO maps nothing in it")
)

// Error is a problem of a device, with a remedy.
type Error = mmio.Error
