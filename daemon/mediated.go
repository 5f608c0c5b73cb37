package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/mediate"
	"github.com/exanet/pfd/shadow"
)

// DeviceVFIOUser comes before the sockets of nodes that are served elsewhere:
// vfio-user:PATH, or several of them with commas between, a node each.
const DeviceVFIOUser = "vfio-user:"

// connectTime is how long pfd waits for its devices at the start (ours).
const connectTime = 10 * time.Second

// sockets gives the sockets of DeviceVFIOUser, nil for another device.
func (c *Config) deviceSockets() []string {
	list, ok := strings.CutPrefix(c.Device, DeviceVFIOUser)
	if !ok {
		return nil
	}
	return strings.Split(list, ",")
}

// checkDevice tells whether the device can be, and what belongs to it.
func (c *Config) checkDevice() error {
	switch sockets := c.deviceSockets(); {
	case c.Device == DeviceEmu:
	case sockets == nil:
		return fmt.Errorf("%w: --device %q: this pfd knows %q and %sPATH", ErrConfig, c.Device, DeviceEmu, DeviceVFIOUser)
	case len(sockets) > MaxNodes:
		return fmt.Errorf("%w: --device: %d sockets: want 1 to %d", ErrConfig, len(sockets), MaxNodes)
	default:
		for i, s := range sockets {
			if s == "" {
				return fmt.Errorf("%w: --device %q: socket %d has no path", ErrConfig, c.Device, i)
			}
		}
	}
	switch {
	case c.Record != "" && c.Device != DeviceEmu:
		return fmt.Errorf("%w: --record needs --device %s: a device elsewhere has inputs that this pfd does not see", ErrConfig, DeviceEmu)
	case c.Firmware != "" && c.Device != DeviceEmu:
		return fmt.Errorf("%w: --firmware-options needs --device %s: the firmware of a device elsewhere is chosen where it is served (exanetctl emu serve --firmware-options)", ErrConfig, DeviceEmu)
	case c.Window != 0 && (c.Window < shadow.MinWindow || c.Window > shadow.MaxWindow || c.Window%device.PageSize != 0):
		return fmt.Errorf("%w: --window %d: want whole pages of %d bytes, %d to %d bytes", ErrConfig, c.Window, device.PageSize, shadow.MinWindow, shadow.MaxWindow)
	case c.Groups != "" && c.FirstPDID == 0:
		return fmt.Errorf("%w: --groups needs --pdid-range: a range of this pfd's own, apart from the PDIDs of the groups", ErrConfig)
	}
	return nil
}

// Open builds the machine that the configuration names. Devices elsewhere are
// waited for a few seconds.
func Open(ctx context.Context, cfg Config) (Machine, error) {
	sockets := cfg.deviceSockets()
	if sockets == nil {
		return Emulated(cfg)
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := mediate.Config{Window: cfg.Window, Log: log}
	for _, s := range sockets {
		c.Connect = append(c.Connect, mediate.VFIOUser(s))
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	m, err := mediate.New(ctx, c)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("no device answers within %v: %w: start it (exanetctl emu serve), or end the pfd that has it", connectTime, err)
	case err != nil:
		return nil, err
	}
	return mediated{m}, nil
}

// mediated is nodes behind vfio-user sockets as a Machine.
type mediated struct{ m *mediate.Machine }

func (m mediated) Nodes() int              { return m.m.Nodes() }
func (m mediated) Bus(node int) device.Bus { return m.m.Bus(node) }

// Run drives the machine and lets it go at its end.
func (m mediated) Run(ctx context.Context) error {
	return errors.Join(m.m.Run(ctx), m.m.Close())
}

func (m mediated) Reconnect(ctx context.Context, node int) error { return m.m.Reconnect(ctx, node) }

func (m mediated) Attach(node, slot int, a *Attachment) error {
	return m.m.Attach(node, slot, &mediate.Attachment{Pages: a.Pages, Wake: a.Wake})
}

func (m mediated) Detach(node, slot int)        { m.m.Detach(node, slot) }
func (m mediated) Tables(node, slot int) uint64 { return m.m.Tables(node, slot) }

func (m mediated) Share(node, slot int, s attach.Share, fd int) error {
	mem, err := m.m.Memory(node)
	if err != nil {
		return err
	}
	return mem.Share(slot, s.VA, s.Size, fd, s.Offset, s.Writable)
}

func (m mediated) Unshare(node, slot int, u attach.Unshare) error {
	mem, err := m.m.Memory(node)
	if err != nil {
		return err
	}
	return mem.Unshare(slot, u.VA, u.Size)
}

func (m mediated) PageIn(node, slot int, va device.VA, pages int, write bool) gup.Result {
	mem, err := m.m.Memory(node)
	if err != nil {
		return gup.Result{Err: err} // it passes, or the slot is ended
	}
	return mem.PageIn(slot, va, pages, write)
}

// Shadow implements Sharing. A mapping of a vfio-user device pins nothing: the
// server maps the same file, and its pages may come and go.
func (m mediated) Shadow(node int) (ShadowStats, bool) {
	mem, err := m.m.Memory(node)
	if err != nil {
		return ShadowStats{}, false
	}
	s := mem.Stats()
	return ShadowStats{Window: s.Window, Mapped: s.Mapped, Shared: s.Shared, Maps: s.Maps, Evictions: s.Evictions}, true
}

// Channels gives what stands in the descriptors: done and status. How many
// blocks a transfer has in flight is the firmware's alone.
func (m mediated) Channels(node int) []ChannelInfo {
	var list []ChannelInfo
	r := &reader{bus: m.m.Bus(node)}
	for c := range device.Channels {
		slot, ch := c/device.ChannelsPerSlot, c%device.ChannelsPerSlot
		at := uint32(device.BTCMDescriptors + slot*device.PageSize + ch*device.DescriptorSize)
		reset := device.DoneReset
		if ch >= device.WriteChannels {
			reset = device.DoneReadReset
		}
		if r.read32(device.BTCM, at+device.DescDone) == reset || r.err != nil {
			continue // never used, or no device
		}
		var words [device.DescriptorWords]uint64
		for i := range words {
			words[i] = r.read64(device.BTCM, at+8*uint32(i))
		}
		d := device.DescriptorOf(&words)
		list = append(list, ChannelInfo{Slot: slot, Channel: ch, Descriptor: d, DstPDID: d.DstPDID, Paused: int(d.Paused)})
	}
	return list
}

// FIFO gives nothing: to read an entry of a device's FIFO is to take it.
func (m mediated) FIFO(int, bool) []FIFOInfo { return nil }
