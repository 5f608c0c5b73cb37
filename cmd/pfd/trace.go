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

// traceSelf attaches the eBPF probe to this program. Where nothing can be pinned it is
// kept. Both end by what traceSelf gives. It needs rights that pfd gives up later.
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
	own := err == nil // and not by exanetctl trace on, whose tracing stays
	switch {
	case errors.Is(err, probe.ErrOn):
		err = tracedAlready(cfg.Probe, err)
	case errors.Is(err, probe.ErrDir):
		cfg.Log.Info("trace: nothing is pinned, pfd keeps what is measured", "why", err)
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
			cfg.Log.Warn("trace: it stays on: run exanetctl trace off", "err", err)
		}
	}, nil
}

// tracedAlready tells whether it is this program that is traced: else on is the error.
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
