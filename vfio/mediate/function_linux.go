package mediate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space/shadow"
	"github.com/exanet/pfd/vfio/user"
)

// Function is a node as a PCI function. Regions 0 to 4 are the windows in the order of
// device.WindowID. All methods but Close are safe for concurrent use. When the device is gone,
// errors match device.ErrGone or are returned after Done is closed.
type Function interface {
	// Read, Write and Post access size bytes of a region. Write returns after the device has
	// received them, Post may return earlier.
	Read(region int, offset uint64, size int) (uint64, error)
	Write(region int, offset uint64, size int, value uint64) error
	Post(region int, offset uint64, size int, value uint64) error
	// DMA maps memfds for the device.
	shadow.DMA
	// Descriptors returns the descriptor part of btcm in this process's memory.
	Descriptors() []byte
	// Done returns a channel that is closed when the device is gone; Err then returns why.
	Done() <-chan struct{}
	Err() error
	// Close releases the device; the result of Descriptors must not be used any more.
	Close()
}

// Connect finds a node's device, waiting for it until ctx ends, and assigns the eventfds to its
// device.Vectors vectors.
type Connect func(ctx context.Context, vectors []int) (Function, error)

// PCI identity of a node (spec/hardware.md 2); defined by this project.
const (
	pciVendor = 0x1234
	pciDevice = 0xe4a0

	pciIDOffset = 0 // configuration space: vendor, device
)

// ErrIdentity reports that a device is not a node.
var ErrIdentity = errors.New("not an ExaNet node")

// userFunction is a node behind a vfio-user socket.
type userFunction struct {
	*user.Client
	mapped []user.Mapped
	bells  []user.IOFD // of window pl
	fds    []int       // all descriptors of bells

	posts   atomic.Bool // DMA_MAPs are not awaited (PostMaps)
	careful atomic.Bool // one was refused, or Await was called: maps are awaited until one succeeds
	sent    atomic.Bool // one was sent since the last doorbell, and must reach the server before the next
}

// VFIOUser connects to the vfio-user server at path with a client's options.
func VFIOUser(path string, opts user.Options) Connect {
	return func(ctx context.Context, vectors []int) (Function, error) {
		f := &userFunction{}
		c, err := user.Redial(ctx, path, f.options(opts), func(c *user.Client) error { return f.setUp(c, vectors) })
		if err != nil {
			return nil, errors.Join(fmt.Errorf("device vfio-user:%s: %w", path, err), f.unmap())
		}
		f.Client = c
		return f, nil
	}
}

// options returns a client's options that await mappings after a refusal.
func (f *userFunction) options(o user.Options) user.Options {
	o.MapRefused = func(uint64, uint64, error) { f.careful.Store(true) }
	return o
}

// setUp prepares a device for its driver. It may be called again after a failure, or after the
// connection broke.
func (f *userFunction) setUp(c *user.Client, vectors []int) error {
	if err := f.unmap(); err != nil {
		return err
	}
	id, err := c.Read(user.RegionConfig, pciIDOffset, 4)
	if err != nil {
		return err
	}
	if id != pciDevice<<16|pciVendor {
		return fmt.Errorf("%w: it is PCI device %04x:%04x, not %04x:%04x: name the socket of one (exanetctl emu serve)", ErrIdentity, id&0xffff, id>>16, pciVendor, pciDevice)
	}
	if err := c.PowerOn(); err != nil {
		return err
	}
	// The vectors first: the device sends nothing before bus mastering is on.
	if err := c.SetEventFDs(user.IRQMSIX, 0, user.IRQActionTrigger, vectors); err != nil {
		return err
	}
	if err := c.SetCommand(user.CommandMemory | user.CommandMaster); err != nil {
		return err
	}
	if f.mapped, err = c.Map(int(device.BTCM)); err != nil {
		return err
	}
	// Another server may not support this request: doorbells are then writes.
	if f.bells, f.fds, err = c.RegionIOFDs(int(device.PL)); err != nil && c.Err() != nil {
		return err
	}
	for _, m := range f.mapped {
		if m.Area.Offset == device.BTCMDescriptors && m.Area.Size >= device.BTCMDoorbells {
			return nil
		}
	}
	return fmt.Errorf("%w: its descriptors cannot be mapped: %w", ErrIdentity, syscall.ENOTSUP)
}

// Ranges implements shadow.DMA. It returns addresses above 4 GiB, clear of the interrupt window
// of a real machine. The values are defined by this project.
func (f *userFunction) Ranges() ([]shadow.Range, error) {
	return []shadow.Range{{First: 1 << 32, Last: 1<<48 - 1}}, nil
}

// Kind implements shadow.DMA: the server maps the same files.
func (f *userFunction) Kind() shadow.Kind { return shadow.Files }

func (f *userFunction) Descriptors() []byte {
	for _, m := range f.mapped {
		if m.Area.Offset == device.BTCMDescriptors && m.Area.Size >= device.BTCMDoorbells {
			return m.Bytes[:device.BTCMDoorbells]
		}
	}
	return nil
}

func (f *userFunction) unmap() error {
	err := user.Unmap(f.mapped)
	for _, fd := range f.fds {
		err = errors.Join(err, os.NewSyscallError("close", unix.Close(fd)))
	}
	f.mapped, f.bells, f.fds = nil, nil, nil
	return err
}

// Ring implements doorbell. It uses the eventfd if the server has one, unless a mapping must
// reach the server first.
func (f *userFunction) Ring(region int, offset uint64) error {
	if !f.sent.Swap(false) && region == int(device.PL) {
		for _, b := range f.bells {
			if b.FD < 0 || b.Offset != offset || b.Type != user.TypeIOEventFD || b.Data != 1 {
				continue
			}
			return f.Signal(b.FD)
		}
	}
	return f.Post(region, offset, 4, 1)
}

// PostMaps implements mapPoster.
func (f *userFunction) PostMaps() { f.posts.Store(true) }

// Await implements shadow.Awaiter. A server that is slow to read its socket may see a doorbell by
// an eventfd before the mapping that it needs.
func (f *userFunction) Await() { f.careful.Store(true) }

// MapDMA implements shadow.DMA. After PostMaps it does not wait for the server. If the server
// refuses, the device's access fails, and the refusal comes with the answer to any later request.
// The retried mapping is then awaited.
func (f *userFunction) MapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error {
	if f.posts.Load() && !f.careful.Load() {
		err := f.PostMapDMA(addr, size, fd, offset, rights)
		f.sent.Store(true) // before any doorbell that depends on it
		return err
	}
	err := f.Client.MapDMA(addr, size, fd, offset, rights)
	var refused *user.Error
	switch {
	case err == nil:
		f.careful.Store(false)
	case errors.As(err, &refused):
		return fmt.Errorf("%w: %w", gup.ErrUnmappable, err)
	}
	return err
}

// MapNow is MapDMA that waits for the server.
func (f *userFunction) MapNow(addr, size uint64, fd int, offset uint64, rights uint32) error {
	return f.Client.MapDMA(addr, size, fd, offset, rights)
}

func (f *userFunction) Close() {
	f.Client.Close()
	_ = f.unmap() // cannot fail: exactly the slices that were mapped
}
