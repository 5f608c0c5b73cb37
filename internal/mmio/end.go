package mmio

import (
	"errors"
	"fmt"
	"sync"
)

// ErrGone reports that a device no longer answers, or that its kernel wants it back.
var ErrGone = errors.New("the device is gone")

// End records the end of a device, once. It is safe for concurrent use.
type End struct {
	device string
	done   chan struct{}

	mu  sync.Mutex
	err error
}

// NewEnd returns the End of a device that works; its error names device.
func NewEnd(device string) *End { return &End{device: device, done: make(chan struct{})} }

// Fail ends the device and returns the error of the first call.
func (e *End) Fail(err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = fmt.Errorf("%s: %w: %w", e.device, ErrGone, err)
		close(e.done)
	}
	return e.err
}

// Done returns a channel that is closed when the device is gone; Err then returns why.
func (e *End) Done() <-chan struct{} { return e.done }

// Err returns why the device is gone, or nil if it is not. It matches ErrGone.
func (e *End) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Error is a problem of a device, with a remedy.
type Error struct {
	Device string // with its kind, as vfio 0000:01:00.0
	Err    error
	Remedy string // a command, perhaps with a word before it
}

// Error implements error.
func (e *Error) Error() string {
	if e.Remedy == "" {
		return fmt.Sprintf("%s: %v", e.Device, e.Err)
	}
	return fmt.Sprintf("%s: %v: %s", e.Device, e.Err, e.Remedy)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
