package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/vfio/mediate"
	"github.com/exanet/pfd/vfio/user"
)

// connectTime bounds the wait for the devices at the start. Defined by this project.
const connectTime = 10 * time.Second

// Open returns the machine that the configuration names. It waits a few seconds for devices
// elsewhere.
func Open(ctx context.Context, cfg Config) (session.Machine, error) {
	kind, names := cfg.devices()
	if names == nil {
		return Emulated(cfg)
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := mediate.Config{Window: cfg.Window, WindowIdle: cfg.WindowIdle, Registers: cfg.Registers, Log: log}
	var running atomic.Bool // the daemon writes the status line from then on
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

// mediated is the Machine of nodes elsewhere.
type mediated struct{ m *mediate.Machine }

func (m mediated) Nodes() int              { return m.m.Nodes() }
func (m mediated) Bus(node int) device.Bus { return m.m.Bus(node) }

// Space implements session.Machine.
func (m mediated) Space(node int) space.Machine { return m.m.Space(node) }

// Run drives the machine until ctx ends, and closes it.
func (m mediated) Run(ctx context.Context) error {
	return errors.Join(m.m.Run(ctx), m.m.Close())
}

// Features implements Machine.
func (m mediated) Features() session.Features {
	return session.Features{
		Sharing: m, Reconnect: m.m.Reconnect, Server: m.m.Server, Transfers: m.m.Ended, Invalidations: m.m.Invalidations,
	}
}

func (m mediated) Attach(node, slot int, a *session.Attachment) error {
	return m.m.Attach(node, slot, &mediate.Attachment{
		Pages: a.Pages, Wake: a.Wake, UID: a.UID, Space: a.Space, Gone: a.Gone, Declined: a.Declined,
	})
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
		return func() bool { return false } // with the device its mappings are gone
	}
	return mem.Unsharer(slot, va)
}

func (m mediated) Prefetch(node, slot int, va device.VA, size uint64) {
	m.m.Prefetch(node, slot, va, size)
}

func (m mediated) Invalidate(node, slot int, va device.VA, size uint64) {
	if mem, err := m.m.Memory(node); err == nil { // a device that is gone has no mappings
		mem.Forget(slot, va, size)
	}
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

// Messages implements Sharing.
func (m mediated) Messages(node int) (sent, awaited uint64, ok bool) { return m.m.Messages(node) }

// Shadow implements Sharing.
func (m mediated) Shadow(node int) (session.ShadowStats, bool) {
	mem, err := m.m.Memory(node)
	if err != nil {
		return session.ShadowStats{}, false
	}
	s := mem.Stats()
	return session.ShadowStats{
		Window: s.Window, Mapped: s.Mapped, Tables: s.Tables, Pinned: s.Pinned, Shared: s.Shared,
		Maps: s.Maps, Evictions: s.Evictions, Remaps: s.Remaps,
	}, true
}
