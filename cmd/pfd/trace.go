package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/trace/probe"
)

// traceSelf attaches the eBPF probe to this program. If pinning is not possible pfd keeps the
// maps. detach ends either. traceSelf needs rights that pfd drops later.
func traceSelf(cfg *daemon.Config) (detach func(), err error) {
	detach = func() {}
	if cfg.Probe == "" {
		return detach, nil
	}
	start := probe.Start{Dir: cfg.Probe, Programs: []string{"/proc/self/exe"}}
	notes, err := probe.On(start)
	for _, n := range notes {
		cfg.Log.Info("trace: " + n)
	}
	own := err == nil // tracing by exanetctl trace on stays
	switch {
	case errors.Is(err, probe.ErrOn):
		err = tracedAlready(cfg.Probe, err)
	case errors.Is(err, probe.ErrDir):
		cfg.Log.Info("trace: nothing is pinned, pfd keeps the maps", "why", err)
		var m *probe.Maps
		if m, err = probe.Keep(start); err == nil {
			cfg.Traced = func() (any, error) { return m.Report() }
			return m.Close, nil
		}
	}
	if err != nil {
		return detach, fmt.Errorf("--trace: %w", err)
	}
	if !own {
		return detach, nil
	}
	begun, err := probe.Begun(cfg.Probe)
	if err != nil {
		return detach, fmt.Errorf("--trace: %w", err)
	}
	return func() {
		if err := begun.End(); err != nil {
			cfg.Log.Warn("trace: still on: run exanetctl trace off", "err", err)
		}
	}, nil
}

// tracedAlready returns nil if this program is the traced one, and on otherwise.
func tracedAlready(dir string, on error) error {
	m, err := probe.Open(dir)
	if err != nil {
		return err
	}
	defer m.Close()
	s, err := m.Status()
	if err != nil {
		return err
	}
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	self = strings.TrimSuffix(self, " (deleted)")
	if slices.ContainsFunc(s.Programs, func(p probe.Program) bool { return p.File == self }) {
		return nil
	}
	return on
}
