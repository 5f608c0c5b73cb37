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
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/internal/sdnotify"
	"github.com/exanet/pfd/space/shadow"
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
			if err := sdnotify.Send(fmt.Sprintf("STATUS=waiting for %s%s: %v", kind, name, err)); err != nil {
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
	return mediated{m, m.HasThreads()}, nil
}

// mediated is the Machine of nodes elsewhere.
type mediated struct {
	*mediate.Machine
	threads bool // of GSAS can use all nodes
}

// Run drives the machine until ctx ends, and closes it.
func (m mediated) Run(ctx context.Context) error {
	return errors.Join(m.Machine.Run(ctx), m.Close())
}

// Features implements Machine.
func (m mediated) Features() session.Features {
	f := session.Features{
		Sharing: m, Reconnect: m.Reconnect, Server: m.Server, Transfers: m.Ended, Invalidations: m.Invalidations,
	}
	if m.threads {
		f.GSAS = m
	}
	return f
}

// SetTree implements session.GSAS.
func (m mediated) SetTree(node int, p atomics.Protection, t *emu.Tree) {
	if t == nil {
		m.RemoveTree(node, p)
		return
	}
	m.AddTree(node, p, t.FD)
}

func (m mediated) Attach(node, slot int, a *session.Attachment) error {
	return m.Machine.Attach(node, slot, &mediate.Attachment{
		Pages: a.Pages, Wake: a.Wake, Bells: a.Bells, UID: a.UID, Space: a.Space, Gone: a.Gone, Declined: a.Declined,
	})
}

func (m mediated) Share(node, slot int, s attach.Share, fd int) error {
	mem, err := m.Memory(node)
	if err != nil {
		return err
	}
	return mem.Share(slot, s.VA, s.Size, fd, s.Offset, s.Writable)
}

func (m mediated) Unshare(node, slot int, r attach.Range) error {
	mem, err := m.Memory(node)
	if err != nil {
		return err
	}
	return mem.Unshare(slot, r.VA, r.Size)
}

// Unsharer implements Sharing.
func (m mediated) Unsharer(node, slot int, va device.VA) func() bool {
	mem, err := m.Memory(node)
	if err != nil {
		return func() bool { return false } // with the device its mappings are gone
	}
	return mem.Unsharer(slot, va)
}

func (m mediated) Invalidate(node, slot int, va device.VA, size uint64) {
	if mem, err := m.Memory(node); err == nil { // a device that is gone has no mappings
		mem.Forget(slot, va, size)
	}
}

// Writable implements Sharing.
func (m mediated) Writable(node, slot int, va device.VA) bool {
	mem, err := m.Memory(node)
	return err == nil && mem.Writable(slot, va)
}

// ReadOnly implements Sharing.
func (m mediated) ReadOnly(node, slot int, va device.VA, size uint64) bool {
	mem, err := m.Memory(node)
	return err == nil && mem.ReadOnly(slot, va, size)
}

// Page implements Sharing.
func (m mediated) Page(node int) uint64 {
	mem, err := m.Memory(node)
	if err != nil {
		return 0
	}
	return mem.Page()
}

// Shadow implements Sharing.
func (m mediated) Shadow(node int) (shadow.Stats, bool) {
	mem, err := m.Memory(node)
	if err != nil {
		return shadow.Stats{}, false
	}
	return mem.Stats(), true
}
