package domain

import (
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/packetizer"
)

// pktzProt is the offset of PKTZ_PROT (spec/gsas.md 2).
func pktzProt(n int) uint32 { return device.PLPktzProt + 8*uint32(n) }

// AddThread assigns interface n, 32..63, to a thread of the domain of a slot. The protection ID is that of
// its tree. An error matches ErrNoDomain, ErrNoThreads or device.ErrGone.
func (m *Manager) AddThread(slot, n int, p atomics.Protection) error {
	s, err := m.live(slot)
	if err != nil {
		return err
	}
	if m.caps&device.CapsGSAS == 0 {
		return fmt.Errorf("node %d: %w (CAPS[31])", m.node, ErrNoThreads)
	}
	r := regs{bus: m.bus, node: m.node}
	r.write64(device.PL, pktzProt(n), device.PktzProt(uint32(p), slot))
	r.write64(device.PL, mboxCfg(n), device.ThreadMboxCfg(s.d.PDID, uint32(p)))
	r.write64(device.PL, pktzCfg(n), packetizer.Config{PDID: s.d.PDID, Node: m.node, Interface: uint8(n), GSAS: true, Enable: true}.Encode())
	r.arrived(pktzCfg(n))
	return r.err
}

// RemoveThread undoes AddThread: the interface sends and receives nothing any more.
func (m *Manager) RemoveThread(n int) error {
	r := regs{bus: m.bus, node: m.node}
	r.write64(device.PL, pktzCfg(n), 0)
	r.write64(device.PL, mboxCfg(n), 0)
	r.write64(device.PL, pktzProt(n), 0)
	r.arrived(pktzCfg(n))
	return r.err
}

// SetPages makes pages of the node's partition a tree's, at an offset in the tree's memory, which the
// machine knows.
func (m *Manager) SetPages(p atomics.Protection, first, pages, offset uint64) error {
	return m.eachRun(first, pages, func(r *regs, at uint64) {
		r.write64(device.PL, device.PLGSASBack, offset+(at-first)*device.PageSize)
		r.write64(device.PL, device.PLGSASEntry, device.GSASEntry{Protection: uint32(p), Present: true, Valid: true}.Encode())
		r.arrived(device.PLGSASPage)
	})
}

// ClearPages makes pages nobody's: no operation on them begins any more.
func (m *Manager) ClearPages(first, pages uint64) error {
	return m.eachRun(first, pages, func(r *regs, _ uint64) { r.write64(device.PL, device.PLGSASEntry, 0) })
}

// PagesBusy reports whether operations on pages that have begun are still under way.
func (m *Manager) PagesBusy(first, pages uint64) (busy bool, err error) {
	err = m.eachRun(first, pages, func(r *regs, _ uint64) {
		busy = busy || r.read64(device.PL, device.PLGSASEntry)&device.GSASBusy != 0
	})
	return busy, err
}

// eachRun selects pages, as many at once as GSAS_PAGE can, and calls f with the first of them.
func (m *Manager) eachRun(first, pages uint64, f func(r *regs, at uint64)) error {
	r := regs{bus: m.bus, node: m.node}
	for at, end := first, first+pages; at < end && r.err == nil; {
		n := min(end-at, device.GSASMaxRun)
		r.write64(device.PL, device.PLGSASPage, device.GSASRun(at, int(n)))
		f(&r, at)
		at += n
	}
	return r.err
}
