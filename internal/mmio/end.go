package mmio

import (
	"errors"
	"fmt"
	"sync"
)

// ErrGone says that a device does not answer any more, or that its kernel wants it back.
var ErrGone = errors.New("the device is gone")

// End is the end of a device, which comes once. Any goroutine may use it.
type End struct {
	device string
	done   chan struct{}

	mu  sync.Mutex
	err error
}

// NewEnd makes the end of a device that has not come; device stands in its error.
func NewEnd(device string) *End { return &End{device: device, done: make(chan struct{})} }

// Fail ends the device, and returns the error of the first call.
func (e *End) Fail(err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = fmt.Errorf("%s: %w: %w", e.device, ErrGone, err)
		close(e.done)
	}
	return e.err
}

// Done is closed when the device is gone; Err then says why.
func (e *End) Done() <-chan struct{} { return e.done }

// Err says why the device is gone, nil while it is not. It matches ErrGone.
func (e *End) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Error is a trouble with a device, and what settles it.
type Error struct {
	Device string // with its kind: vfio 0000:01:00.0
	Err    error
	Remedy string // a command, perhaps with a word before it
}

// Error gives the sentence.
func (e *Error) Error() string {
	if e.Remedy == "" {
		return fmt.Sprintf("%s: %v", e.Device, e.Err)
	}
	return fmt.Sprintf("%s: %v: %s", e.Device, e.Err, e.Remedy)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }
