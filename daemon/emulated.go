package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/space/view"
	"github.com/exanet/pfd/trace"
)

// emulated is the Machine of the SoC that pfd emulates in its own process.
type emulated struct {
	*emu.Engine
	rec   *recording // nil: none
	log   *trace.Log
	hosts *hosts
}

// Emulated returns the machine of --device emu.
func Emulated(cfg Config) (session.Machine, error) {
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	firmware, err := r5.ParseOptions(cfg.Firmware)
	if err != nil {
		return nil, fmt.Errorf("%w: --firmware-options: %w", ErrConfig, err)
	}
	cfg = cfg.withDefaults()
	groups, err := cfg.groups()
	if err != nil {
		return nil, err
	}
	hosts := newHosts(&cfg, groups, log)
	records := new(trace.Log)
	e, err := emu.New(emu.Config{
		Nodes: cfg.Nodes, Base: cfg.NodeBase, Carrier: hosts.links, Firmware: firmware, Link: cfg.Link,
		// Without a TXFIFO the firmware does not pause a source fault's block, and its
		// time-out retransmits it, as in the thesis.
		NoTXFIFO: cfg.SourceFaults == SourceTimeout,
		Stall:    cfg.FaultMode == FaultStall,
		Log:      log, Trace: records,
	})
	if err != nil {
		return nil, fmt.Errorf("building the emulated machine: %w", err)
	}
	m := emulated{Engine: e, log: records, hosts: hosts}
	if cfg.Record != "" {
		if m.rec, err = startRecording(cfg.Record, e, log); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Features implements Machine.
func (m emulated) Features() session.Features {
	f := session.Features{
		Base:          m.Base(),
		NewView:       view.NewWithin,
		GSAS:          m.Engine,
		Tell:          m.hosts.links.Tell,
		Accesses:      m.Accesses,
		Transfers:     func(node int) *tally.Node { return m.Node(node).Ended() },
		Invalidations: m.invalidations,
		Transactions: func(node int) ([]r5.TransactionInfo, int64) {
			return m.Node(node).Transactions(), m.Clock()
		},
		Firmware: func() string { return m.Firmware().String() },
		Log:      m.log,
		Tap:      m.Tap,
	}
	if m.rec != nil {
		f.Recording = func() bool { return !m.rec.broken.Load() }
	}
	return f
}

func (m emulated) invalidations(node int) (list [device.Slots]tally.Invalidated) {
	for slot, pages := range m.Node(node).Invalidations() {
		list[slot].Pages = pages
	}
	return list
}

// Run drives the machine and the links to other hosts until ctx ends, and closes the recording.
func (m emulated) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var links sync.WaitGroup
	links.Go(func() {
		if err := m.hosts.links.Run(ctx, m.Engine); err != nil && ctx.Err() == nil {
			m.hosts.log.Error("the links to other hosts have ended", "err", err)
		}
	})
	err := m.Engine.Run(ctx)
	cancel()
	links.Wait()
	if m.rec != nil {
		m.rec.close()
	}
	return err
}

func (m emulated) Attach(node, slot int, a *session.Attachment) error {
	return m.Engine.Attach(node, slot, &emu.Attachment{
		Pages: a.Pages, Wake: a.Wake, Bells: a.Bells, Space: a.Space, ReadOnly: a.ReadOnly, Gone: a.Gone, Declined: a.Declined,
		Log: a.Log, UID: a.UID, PID: a.PID,
	})
}
