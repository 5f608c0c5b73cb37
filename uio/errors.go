package uio

import (
	"errors"
	"fmt"
)

// What can go wrong, matched by errors.Is.
var (
	// ErrGone says that the device does not answer any more.
	ErrGone = errors.New("the device is gone")
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
type Error struct {
	Device string
	Err    error
	Remedy string // a command, perhaps with a word before it
}

// Error gives the sentence.
func (e *Error) Error() string {
	if e.Remedy == "" {
		return fmt.Sprintf("uio %s: %v", e.Device, e.Err)
	}
	return fmt.Sprintf("uio %s: %v: %s", e.Device, e.Err, e.Remedy)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }
