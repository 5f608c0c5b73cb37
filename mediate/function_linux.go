package mediate

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/vfio/user"
)

// Function is a node as a PCI function. Regions 0 to 4 are the windows in the
// order of device.WindowID. Its methods may be called from any goroutine, but
// for Close; errors of a device that is gone match device.ErrGone or are given
// after Done is closed.
type Function interface {
	// Read, Write and Post access size bytes of a region: Write returns when
	// the device has taken them, Post may not.
	Read(region int, offset uint64, size int) (uint64, error)
	Write(region int, offset uint64, size int, value uint64) error
	Post(region int, offset uint64, size int, value uint64) error
	// MapDMA and UnmapDMA let the device reach memfds (vfio/user.Client).
	MapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error
	UnmapDMA(addr, size uint64) error
	// Descriptors gives the descriptor part of btcm in this process's memory.
	Descriptors() []byte
	// Done is closed when the device is gone; Err says why.
	Done() <-chan struct{}
	Err() error
	// Close lets the device go; what Descriptors gave must not be used any more.
	Close()
}

// Connect finds a node's device, waits for it until ctx ends, and has its
// vectors, device.Vectors of them, written to the eventfds.
type Connect func(ctx context.Context, vectors []int) (Function, error)

// PCI identity of a node (spec/hardware.md 2; ours).
const (
	pciVendor = 0x1234
	pciDevice = 0xe4a0

	pciIDOffset = 0 // configuration space: vendor, device
)

// ErrIdentity says that a device is not a node.
var ErrIdentity = errors.New("not an ExaNet node")

// userFunction is a node behind a vfio-user socket.
type userFunction struct {
	*user.Client
	mapped []user.Mapped
}

// VFIOUser connects to the vfio-user server at path, with messages of the usual
// sizes.
func VFIOUser(path string) Connect { return VFIOUserWith(path, user.Options{}) }

// VFIOUserWith connects to the vfio-user server at path with a client's options.
func VFIOUserWith(path string, opts user.Options) Connect {
	return func(ctx context.Context, vectors []int) (Function, error) {
		f := &userFunction{}
		c, err := user.Redial(ctx, path, opts, func(c *user.Client) error { return f.setUp(c, vectors) })
		if err != nil {
			return nil, errors.Join(fmt.Errorf("device vfio-user:%s: %w", path, err), f.unmap())
		}
		f.Client = c
		return f, nil
	}
}

// setUp prepares a device for its driver. It may be called again after it
// failed, or after the connection broke.
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
	// The vectors first: nothing is sent before bus mastering is on.
	if err := c.SetEventFDs(user.IRQMSIX, 0, user.IRQActionTrigger, vectors); err != nil {
		return err
	}
	if err := c.SetCommand(user.CommandMemory | user.CommandMaster); err != nil {
		return err
	}
	if f.mapped, err = c.Map(int(device.BTCM)); err != nil {
		return err
	}
	for _, m := range f.mapped {
		if m.Area.Offset == device.BTCMDescriptors && m.Area.Size >= device.BTCMDoorbells {
			return nil
		}
	}
	return fmt.Errorf("%w: its descriptors cannot be mapped: %w", ErrIdentity, syscall.ENOTSUP)
}

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
	f.mapped = nil
	return err
}

func (f *userFunction) Close() {
	f.Client.Close()
	_ = f.unmap() // cannot fail: the very slices that were mapped
}
