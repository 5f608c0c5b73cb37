package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/uids"
	"github.com/exanet/pfd/mediate"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/shadow"
	"github.com/exanet/pfd/uio"
	"github.com/exanet/pfd/vfio/kernel"
	"github.com/exanet/pfd/vfio/user"
)

// DeviceVFIOUser comes before the sockets of nodes that are served elsewhere:
// vfio-user:PATH, or several of them with commas between, a node each.
const DeviceVFIOUser = "vfio-user:"

// DeviceVFIO comes before the PCI addresses of nodes that this machine's kernel
// gives to pfd: vfio:ADDRESS, or several of them with commas between, a node each.
const DeviceVFIO = "vfio:"

// DeviceUIO comes before the names of UIO devices, as uio0, or PCI addresses: uio:NAME,
// or several of them with commas between, a node each.
const DeviceUIO = "uio:"

// connectTime is how long pfd waits for its devices at the start (ours).
const connectTime = 10 * time.Second

// devices gives the kind of the device, and the sockets or addresses of a device
// elsewhere; none for others.
func (c *Config) devices() (kind string, names []string) {
	for _, kind := range []string{DeviceVFIOUser, DeviceVFIO, DeviceUIO} {
		if list, ok := strings.CutPrefix(c.Device, kind); ok {
			return kind, strings.Split(list, ",")
		}
	}
	return c.Device, nil
}

// checkDevice tells whether the device can be, and what belongs to it.
func (c *Config) checkDevice() error {
	switch kind, names := c.devices(); {
	case c.Device == DeviceEmu:
	case names == nil:
		return fmt.Errorf("%w: --device %q: this pfd knows %q, %sPATH, %sADDRESS and %sNAME", ErrConfig, c.Device, DeviceEmu, DeviceVFIOUser, DeviceVFIO, DeviceUIO)
	case len(names) > MaxNodes:
		return fmt.Errorf("%w: --device: %d nodes: want 1 to %d", ErrConfig, len(names), MaxNodes)
	case kind == DeviceVFIO:
		for _, addr := range names {
			if err := kernel.CheckAddress(addr); err != nil {
				return fmt.Errorf("%w: --device: %w", ErrConfig, err)
			}
		}
	case kind == DeviceUIO:
		for _, name := range names {
			if err := uio.CheckName(name); err != nil {
				return fmt.Errorf("%w: --device: %w", ErrConfig, err)
			}
		}
	default:
		for i, s := range names {
			if s == "" {
				return fmt.Errorf("%w: --device %q: socket %d has no path", ErrConfig, c.Device, i)
			}
		}
	}
	if err := uids.Check(c.DeviceUID); err != nil {
		return fmt.Errorf("%w: --device-uid: %w", ErrConfig, err)
	}
	switch {
	case c.UnsafeNoIOMMU && !strings.HasPrefix(c.Device, DeviceVFIO):
		return fmt.Errorf("%w: --unsafe-noiommu needs --device %sADDRESS", ErrConfig, DeviceVFIO)
	case c.Record != "" && c.Device != DeviceEmu:
		return fmt.Errorf("%w: --record needs --device %s: a device elsewhere has inputs that this pfd does not see", ErrConfig, DeviceEmu)
	case c.FaultMode == FaultStall && c.Device != DeviceEmu:
		return fmt.Errorf("%w: --fault-mode %s needs --device %s: no device elsewhere can stall", ErrConfig, FaultStall, DeviceEmu)
	case c.Firmware != "" && c.Device != DeviceEmu:
		return fmt.Errorf("%w: --firmware-options needs --device %s: the firmware of a device elsewhere is chosen where it is served (exanetctl emu serve --firmware-options)", ErrConfig, DeviceEmu)
	case c.Link.Some() && c.Device != DeviceEmu:
		return fmt.Errorf("%w: --link-delay and --link-loss need --device %s: the links of a device elsewhere are where it is served (exanetctl emu serve --link-delay)", ErrConfig, DeviceEmu)
	case c.Window != 0 && (c.Window < shadow.MinWindow || c.Window > shadow.MaxWindow || c.Window%device.PageSize != 0):
		return fmt.Errorf("%w: --window %d: want whole pages of %d bytes, %d to %d bytes", ErrConfig, c.Window, device.PageSize, shadow.MinWindow, shadow.MaxWindow)
	case c.WindowIdle < 0:
		return fmt.Errorf("%w: --window-idle %v: want more than 0, or 0 for what is usual", ErrConfig, c.WindowIdle)
	case c.Groups != "" && c.FirstPDID == 0:
		return fmt.Errorf("%w: --groups needs --pdid-range: a range of this pfd's own, apart from the PDIDs of the groups", ErrConfig)
	}
	return nil
}

// Open builds the machine that the configuration names. Devices elsewhere are
// waited for a few seconds.
func Open(ctx context.Context, cfg Config) (Machine, error) {
	kind, names := cfg.devices()
	if names == nil {
		return Emulated(cfg)
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := mediate.Config{Window: cfg.Window, WindowIdle: cfg.WindowIdle, Registers: cfg.Registers, Log: log}
	var running atomic.Bool // from then on the status line is the daemon's
	for i, name := range names {
		waiting := func(err error) {
			log.Warn("waiting for the device", "node", i, "device", kind+name, "err", err)
			if running.Load() {
				return
			}
			if err := notify(fmt.Sprintf("STATUS=waiting for %s%s: %v", kind, name, err)); err != nil {
				log.Warn("service manager not told", "what", "STATUS", "err", err)
			}
		}
		switch kind {
		case DeviceVFIO:
			c.Connect = append(c.Connect, mediate.VFIO(name, cfg.UnsafeNoIOMMU, waiting))
		case DeviceUIO:
			c.Connect = append(c.Connect, mediate.UIO(name, waiting))
		default:
			c.Connect = append(c.Connect, mediate.VFIOUser(name, user.Options{Trust: []uint32{cfg.DeviceUID}, Waiting: waiting}))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	m, err := mediate.New(ctx, c)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && kind != DeviceVFIOUser:
		return nil, fmt.Errorf("no device within %v: %w", connectTime, err)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("no device answers within %v: %w: start it (exanetctl emu serve), or end the pfd that has it", connectTime, err)
	case err != nil:
		return nil, err
	}
	running.Store(true)
	return mediated{m}, nil
}

// mediated is nodes elsewhere as a Machine.
type mediated struct{ m *mediate.Machine }

func (m mediated) Nodes() int              { return m.m.Nodes() }
func (m mediated) Bus(node int) device.Bus { return m.m.Bus(node) }

// Run drives the machine and lets it go at its end.
func (m mediated) Run(ctx context.Context) error {
	return errors.Join(m.m.Run(ctx), m.m.Close())
}

// Features implements Machine.
func (m mediated) Features() Features {
	return Features{
		Sharing: m, Reconnect: m.m.Reconnect, Server: m.m.Server, Ended: m.m.Ended, Invalidations: m.m.Invalidations,
	}
}

func (m mediated) Attach(node, slot int, a *Attachment) error {
	return m.m.Attach(node, slot, &mediate.Attachment{Pages: a.Pages, Wake: a.Wake, UID: a.UID, Declined: a.Declined})
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

// Unsharer implements Sharing.
func (m mediated) Unsharer(node, slot int, va device.VA) func() bool {
	mem, err := m.m.Memory(node)
	if err != nil {
		return func() bool { return false } // the device is gone, and what it reached
	}
	return mem.Unsharer(slot, va)
}

func (m mediated) Prefetch(node, slot int, va device.VA, size uint64) {
	m.m.Prefetch(node, slot, va, size)
}

func (m mediated) Invalidate(node, slot int, va device.VA, size uint64) {
	if mem, err := m.m.Memory(node); err == nil { // a device that is gone has nothing
		mem.Forget(slot, va, size)
	}
}

func (m mediated) PageIn(node, slot int, va device.VA, pages int, write bool) gup.Result {
	mem, err := m.m.Memory(node)
	if err != nil {
		return gup.Result{Err: err} // it passes, or the slot is ended
	}
	return mem.PageIn(slot, va, pages, write)
}

// Page implements Sharing.
func (m mediated) Page(node int) uint64 {
	mem, err := m.m.Memory(node)
	if err != nil {
		return 0
	}
	return mem.Page()
}

func (m mediated) Asked(node, slot int, f netlink.Fault) { m.m.Asked(node, slot, f) }

func (m mediated) Again(node, slot int, va device.VA, write bool) gup.Result {
	mem, err := m.m.Memory(node)
	if err != nil {
		return gup.Result{Err: err}
	}
	return mem.Again(slot, va, write)
}

// Messages implements Sharing.
func (m mediated) Messages(node int) (sent, awaited uint64, ok bool) { return m.m.Messages(node) }

// Shadow implements Sharing.
func (m mediated) Shadow(node int) (ShadowStats, bool) {
	mem, err := m.m.Memory(node)
	if err != nil {
		return ShadowStats{}, false
	}
	s := mem.Stats()
	return ShadowStats{
		Window: s.Window, Mapped: s.Mapped, Tables: s.Tables, Pinned: s.Pinned, Shared: s.Shared,
		Maps: s.Maps, Evictions: s.Evictions, Mismatches: s.Mismatches,
	}, true
}
