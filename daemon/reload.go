package daemon

import (
	"context"
	"fmt"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/sdnotify"
)

// Reloaded is the outcome of Reload: names of flags.
type Reloaded struct {
	Changed []string // in effect now
	Restart []string // differ, and take effect when pfd is restarted
}

// setting is one key of the configuration.
type setting struct {
	name   string
	value  func(*Config) any
	reload bool // it can change while pfd runs
}

// settings are the keys that Reload compares.
var settings = []setting{
	{"nodes", func(c *Config) any { return c.Nodes }, false},
	{"node-base", func(c *Config) any { return c.NodeBase }, false},
	{"socket", func(c *Config) any { return c.Socket }, false},
	{"device", func(c *Config) any { return c.Device }, false},
	{"source-faults", func(c *Config) any { return c.SourceFaults }, false},
	{"fault-mode", func(c *Config) any { return c.FaultMode }, false},
	{"firmware-options", func(c *Config) any { return c.Firmware }, false},
	{"link-delay", func(c *Config) any { return c.Link.Delay }, false},
	{"link-loss", func(c *Config) any { return c.Link.Loss }, false},
	{"link-seed", func(c *Config) any { return c.Link.Seed }, false},
	{"device-uid", func(c *Config) any { return c.DeviceUID }, false},
	{"metrics-listen", func(c *Config) any { return c.MetricsListen }, false},
	{"sandbox", func(c *Config) any { return c.Sandbox }, false},
	{"record", func(c *Config) any { return c.Record }, false},
	{"trace", func(c *Config) any { return c.Probe }, false},
	{"trace-registers", func(c *Config) any { return c.Trace }, false},
	{"window", func(c *Config) any { return c.Window }, false},
	{"window-idle", func(c *Config) any { return c.WindowIdle }, false},
	{"unsafe-noiommu", func(c *Config) any { return c.UnsafeNoIOMMU }, false},
	{"registers", func(c *Config) any { return c.Registers }, false},
	{"pdid-range", func(c *Config) any { return [2]any{c.FirstPDID, c.LastPDID} }, false},
	{"groups", func(c *Config) any { return c.Groups }, false},
	{"group-size", func(c *Config) any { return c.GroupSize }, false},
	{"quota", func(c *Config) any { return c.Quota }, true},
	{"log-level", func(c *Config) any { return c.LogLevel }, true},
	{"timeout-us", func(c *Config) any { return c.TimeoutUS }, true},
	{"guard-us", func(c *Config) any { return c.GuardUS }, true},
	{"outstanding", func(c *Config) any { return c.Outstanding }, true},
	{"handshake-time", func(c *Config) any { return c.HandshakeTime }, true},
	{"handshakes-per-uid", func(c *Config) any { return c.HandshakesPerUID }, true},
	{"gsas-quota", func(c *Config) any { return c.GSASQuota }, true},
	{"drain-time", func(c *Config) any { return c.DrainTime }, true},
}

// Reload applies the changes in the configuration that load returns that a running pfd can
// apply, and names the others. It notifies the service manager at its beginning and its end.
// After load's error, or one that matches ErrConfig, nothing has changed.
func (d *Daemon) Reload(ctx context.Context, load func() (Config, error)) (Reloaded, error) {
	d.upkeep.notify(sdnotify.Reloading())
	// READY ends the reload for the service manager, even if it failed.
	defer d.upkeep.ready("")
	var r Reloaded
	next, err := load()
	if err != nil {
		return r, err
	}
	if err := next.Check(); err != nil {
		return r, err
	}
	next = next.withDefaults()
	now := *d.tune.Load()
	for _, s := range settings {
		if s.value(&now) == s.value(&next) {
			continue
		}
		if s.reload {
			r.Changed = append(r.Changed, s.name)
		} else {
			r.Restart = append(r.Restart, s.name)
		}
	}
	now.LogLevel, now.TimeoutUS, now.GuardUS, now.Outstanding = next.LogLevel, next.TimeoutUS, next.GuardUS, next.Outstanding
	now.Quota, now.GSASQuota = next.Quota, next.GSASQuota
	now.HandshakeTime, now.HandshakesPerUID, now.DrainTime = next.HandshakeTime, next.HandshakesPerUID, next.DrainTime
	before := d.tune.Swap(&now) // a device that comes back from now on gets them
	err = d.host.Each(ctx, control.AllNodes, func(n *session.Node) error {
		if n.Down() {
			return nil // it gets them when its device is back
		}
		pl := n.Bus().Window(device.PL)
		if err := pl.Write32(device.PLTimeoutUS, next.TimeoutUS); err != nil {
			return fmt.Errorf("node %d: TIMEOUT_US: %w", n.Number(), err)
		}
		if err := pl.Write32(device.PLGuardUS, next.GuardUS); err != nil {
			return fmt.Errorf("node %d: GUARD_US: %w", n.Number(), err)
		}
		if err := pl.Write32(device.PLOutstanding, next.Outstanding); err != nil {
			return fmt.Errorf("node %d: OUTSTANDING: %w", n.Number(), err)
		}
		return nil
	})
	if err != nil {
		d.tune.Store(before)
		return Reloaded{}, fmt.Errorf("reloading: %w", err)
	}
	d.host.Handshakes().SetPer(next.HandshakesPerUID)
	d.groups.SetQuota(next.Quota)
	d.host.SetGSASQuota(next.GSASQuota)
	if d.cfg.Level != nil {
		d.cfg.Level.Set(next.LogLevel)
	}
	return r, nil
}
