package daemon

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/domain"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/pagein"
)

// Sharing is a Machine whose devices do not see the processes' page tables:
// processes share memory, and pfd keeps tables of it.
type Sharing interface {
	Machine
	// Tables gives what belongs into TTBR0 of a slot's context bank. Called on
	// the owning goroutine.
	Tables(node, slot int) uint64
	// Share and Unshare take a process's requests. Any goroutine may call them.
	Share(node, slot int, s attach.Share, fd int) error
	Unshare(node, slot int, u attach.Unshare) error
	// PageIn is fault.Pager's for a slot.
	PageIn(node, slot int, va device.VA, pages int, write bool) gup.Result
	// Shadow tells what of the processes' memory the device has.
	Shadow(node int) (ShadowStats, bool)
}

// ShadowStats is what a node's device has of the processes' memory.
type ShadowStats struct {
	Window    uint64 // bytes that may be mapped at one time
	Mapped    uint64 // bytes that are
	Pinned    uint64 // of these, bytes that mapping has pinned
	Shared    uint64 // bytes that processes share
	Maps      uint64 // pieces mapped since the device came
	Evictions uint64 // of these, taken away for others
}

// Returning is a Machine whose devices live elsewhere: they go and come back.
type Returning interface {
	Machine
	// Reconnect waits until a node's device is there again, or ctx ends.
	Reconnect(ctx context.Context, node int) error
}

// sharing is a session as what its process shares memory with.
type sharing struct {
	m Sharing
	s *session
}

// Share implements attach.Sharer.
func (h sharing) Share(s attach.Share, fd int) error {
	return h.m.Share(h.s.n.index, h.s.joined.domain.Slot, s, fd)
}

// Unshare implements attach.Sharer.
func (h sharing) Unshare(u attach.Unshare) error {
	return h.m.Unshare(h.s.n.index, h.s.joined.domain.Slot, u)
}

// sharer gives what takes the process's memory; nil where none is needed.
func (s *session) sharer() attach.Sharer {
	if m, ok := s.d.machine.(Sharing); ok {
		return sharing{m, s}
	}
	return nil
}

// sharedPager pages in what a process has shared.
type sharedPager struct {
	m          Sharing
	node, slot int
}

// PageIn implements fault.Pager.
func (p sharedPager) PageIn(va device.VA, pages int, write bool) gup.Result {
	return p.m.PageIn(p.node, p.slot, va, pages, write)
}

// pagerFor gives the session's Pager.
func (s *session) pagerFor(slot int) fault.Pager {
	if m, ok := s.d.machine.(Sharing); ok {
		return sharedPager{m, s.n.index, slot}
	}
	switch s.method {
	case pagein.UFFD:
		s.regions = gup.NewRegions(s.process)
		return &pager{Pager: s.regions, s: s}
	case pagein.Populate:
		return &pager{Pager: populatePager{s.process, s.delegate(), s.served}, s: s}
	}
	return &pager{Pager: gup.New(s.process), s: s}
}

// checkDevice refuses what the node's device cannot do, or cannot do now.
func (s *session) checkDevice() error {
	if s.n.down.Load() {
		return refusal(attach.CodeBusy, "the device of node %d is gone and pfd waits for it: start it again, and try again", s.n.index)
	}
	if _, ok := s.d.machine.(Sharing); ok && s.method != pagein.GUP {
		return refusal(attach.CodeUnsupported, "method %v needs a device that sees the process's page tables: use gup", s.method)
	}
	return nil
}

// domainOptions gives how the machine's domains are made.
func (d *Daemon) domainOptions(n *node) []domain.Option {
	if m, ok := d.machine.(Sharing); ok {
		return []domain.Option{domain.WithTables(func(slot int) uint64 { return m.Tables(n.index, slot) })}
	}
	return nil
}

// unmasked gives the vectors that the daemon's machine wants besides those that
// the domain manager unmasks. Where somebody has to carry completions over to
// the processes, it is told of them.
func (d *Daemon) unmasked() uint32 {
	v := uint32(1) << device.VectorMailbox
	if _, ok := d.machine.(Sharing); ok {
		v |= 1 << device.VectorDone
	}
	return v
}

// shadowMetrics adds what a node's device has of the processes' memory.
func (d *Daemon) shadowMetrics(s *scrape, index int) {
	m, ok := d.machine.(Sharing)
	if !ok {
		return
	}
	t, ok := m.Shadow(index)
	if !ok {
		return
	}
	node := strconv.Itoa(index)
	s.gauge("window_bytes", "bytes of memory that the device may have mapped at one time", float64(t.Window), "node", node)
	s.gauge("window_mapped_bytes", "bytes of memory that the device has mapped", float64(t.Mapped), "node", node)
	s.gauge("window_pinned_bytes", "bytes of memory that mapping has pinned", float64(t.Pinned), "node", node)
	s.gauge("window_shared_bytes", "bytes of memory that processes share", float64(t.Shared), "node", node)
	s.counter("window_maps_total", "pieces of memory mapped for the device", t.Maps, "node", node)
	s.counter("window_evictions_total", "pieces of memory unmapped to make room for others", t.Evictions, "node", node)
}

// serveNode delivers a node's interrupts until ctx ends. A device that goes ends
// the node's attachments; where it may come back it is waited for.
func (d *Daemon) serveNode(ctx context.Context, n *node) error {
	var gone atomic.Int64 // how often the device has gone
	for {
		err := n.bus.Serve(ctx, n)
		m, ok := d.machine.(Returning)
		if err == nil || ctx.Err() != nil || !ok || !n.started.Load() {
			return err
		}
		times := gone.Add(1)
		n.down.Store(true)
		d.log.Warn("the device is gone: its attachments end", "node", n.index, "why", err)
		d.endNode(ctx, n)
		if err := m.Reconnect(ctx, n.index); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("node %d: its device does not come back: %w", n.index, err)
		}
		n.bus.Post(func() {
			if err := d.startNode(n); err != nil {
				// Gone again, which Serve finds out; or not a device of ours.
				d.log.Error("the device came back and cannot be used", "node", n.index, "err", err)
				return
			}
			go func() {
				d.settle(ctx, n)
				if gone.Load() == times {
					n.down.Store(false)
					d.log.Info("the device is there again", "node", n.index)
				}
			}()
		})
	}
}

// endNode ends a node's sessions and waits until they are over.
func (d *Daemon) endNode(ctx context.Context, n *node) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		busy := false
		d.mu.Lock()
		for s := range d.live {
			if s.n == n {
				busy = true
				s.end(attach.ReasonDevice)
			}
		}
		d.mu.Unlock()
		if !busy {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// stateNow gives the daemon's state for people: one that waits for a device says
// so.
func (d *Daemon) stateNow() string {
	s := *d.state.Load()
	if s != control.StateReady {
		return s
	}
	for _, n := range d.nodes {
		if n.down.Load() {
			return control.StateReconnecting
		}
	}
	return s
}

// adopt looks what an earlier pfd has left on a node. On the owning goroutine,
// before the node is initialized, which ends it.
func (n *node) adopt() {
	var live []device.PDID
	r := &reader{bus: n.bus}
	for slot := range uint32(device.Slots) {
		if v := r.read64(device.PL, device.PLPDCfg+8*slot); v&device.CfgEnable != 0 {
			live = append(live, device.PDID(v&device.PDIDMask))
		}
	}
	if len(live) > 0 {
		n.log.Warn("domains of an earlier pfd are ended: their processes attach again", "pdids", live)
	}
	n.adopted.Store(int32(len(live))) // of a device that is gone, none
}

// startNode initializes a node. On the owning goroutine.
func (d *Daemon) startNode(n *node) error {
	n.options, n.unmask, n.broken = d.domainOptions(n), d.unmasked(), nil
	n.hear = func(src mailbox.Source, words []uint64) { d.heard(n, src, words) }
	if _, ok := d.machine.(Returning); ok {
		n.adopt()
	}
	if err := d.initialize(n); err != nil {
		return err
	}
	n.started.Store(true)
	return nil
}

// settleGuards is how many guard periods of its peers a re-adopted node waits
// before it lets processes in: a paused block of a transfer to one of its former
// domains is sent again within sixteen (spec/firmware.md "Acknowledgements"), and
// finds that the domain is gone, and not the next one with that PDID (ours).
const settleGuards = 20

// settle waits until transfers to domains that were ended are over.
func (d *Daemon) settle(ctx context.Context, nodes ...*node) {
	any := false
	for _, n := range nodes {
		any = n.adopted.Swap(0) > 0 || any
	}
	if !any {
		return
	}
	wait := settleGuards * time.Duration(d.cfg.GuardUS) * time.Microsecond
	d.log.Info("waiting for transfers to the former domains to end", "for", wait)
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
}
