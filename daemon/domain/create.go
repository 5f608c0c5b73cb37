package domain

import (
	"fmt"
	"slices"

	"github.com/exanet/pfd/device"
)

// Create creates a domain for a process: a slot, its group's PDID, and the interface pair 16 +
// slot. PD_CFG, which activates the slot, is written last. On an error nothing is assigned; the
// error matches ErrNoSlot, ErrQuota, ErrGroupFull, ErrNoPDID, ErrPeers, ErrNames, ErrPDID, ErrGroupName,
// ErrNotReady or device.ErrGone.
func (m *Manager) Create(q Request) (*Domain, error) {
	if !m.ready {
		return nil, fmt.Errorf("node %d: %w; call Init first", m.node, ErrNotReady)
	}
	if err := checkGroupName(q.Group); err != nil {
		return nil, err
	}
	if len(q.Accept) > device.PeersPerSlot {
		return nil, &PeersError{Slot: -1, Wanted: len(q.Accept), Limit: device.PeersPerSlot}
	}
	if slices.ContainsFunc(q.Accept, nobody) {
		return nil, fmt.Errorf("accept: %w; name the PDID of a domain (exanetctl domain show)", ErrPDID)
	}
	n, err := m.free(q)
	if err != nil {
		return nil, err
	}
	member, pdids, err := m.dir.join(m.node, q.UID, q.Group)
	if err != nil {
		return nil, err
	}
	pdid := pdids[member]
	peers, named := peersOf(q, pdid, pdids)
	if len(peers) > device.PeersPerSlot {
		m.dir.leave(m.node, q.UID, q.Group, member)
		return nil, &PeersError{Slot: -1, Wanted: len(peers), Limit: device.PeersPerSlot}
	}
	if err := m.dir.hold(q.UID, named); err != nil {
		m.dir.leave(m.node, q.UID, q.Group, member)
		return nil, fmt.Errorf("node %d: accept: %w", m.node, err)
	}
	generation := m.dir.generation()
	if err := m.setUp(n, pdid, generation, peers); err != nil {
		m.dir.release(q.UID, named)
		m.dir.leave(m.node, q.UID, q.Group, member)
		return nil, err
	}
	m.slots[n] = slot{used: true, named: named, d: Domain{
		Node: m.node, Slot: n, PDID: pdid, Generation: generation, UID: q.UID, PID: q.PID, Group: q.Group, Member: member,
		Interface: uint8(device.MailboxProcess + n), Peers: peers,
	}}
	d := m.slots[n].copy()
	return &d, nil
}

// nobody reports whether no domain can have a PDID.
func nobody(p device.PDID) bool { return p == device.PDIDFirmware || p == device.PDIDDriver }

// free finds the lowest free slot and checks the user's quota. A draining slot is not free and
// still counts, so that a user cannot exceed the quota by attaching and detaching. The last slot
// may be reserved for a user without a domain there.
func (m *Manager) free(q Request) (int, error) {
	n, used, own, unused := -1, 0, 0, 0
	for i := range m.slots {
		if !m.slots[i].used {
			if !m.slots[i].inherited {
				if unused++; n < 0 {
					n = i
				}
			}
			continue
		}
		used++
		if m.slots[i].d.UID == q.UID {
			own++
		}
	}
	quota := m.dir.Quota()
	switch {
	case own >= quota:
		return 0, &LimitError{Err: ErrQuota, Node: m.node, UID: q.UID, Group: q.Group, Used: own, Limit: quota}
	case unused == 1 && own > 0 && m.dir.keepLast != nil && m.dir.keepLast(q.UID):
		return 0, &LimitError{Err: ErrLastSlot, Node: m.node, UID: q.UID, Group: q.Group, Used: own, Limit: device.Slots}
	case n < 0:
		return 0, &LimitError{Err: ErrNoSlot, Node: m.node, UID: q.UID, Group: q.Group, Used: used, Limit: device.Slots}
	}
	return n, nil
}

// peersOf returns the PDIDs for PD_PEERS: the group's other PDIDs, then those accepted by name,
// each once and never the domain's own. named are the latter.
func peersOf(q Request, own device.PDID, group []device.PDID) (peers, named []device.PDID) {
	if q.AcceptGroup {
		for _, p := range group {
			if p != own {
				peers = append(peers, p)
			}
		}
	}
	for _, p := range q.Accept {
		if p != own && !slices.Contains(peers, p) {
			peers = append(peers, p)
			named = append(named, p)
		}
	}
	return peers, named
}

// setUp writes the registers of a domain: the context bank and the stream while the stream still
// faults, then the access rights, and PD_CFG last.
func (m *Manager) setUp(n int, pdid device.PDID, generation device.Generation, peers []device.PDID) error {
	r := regs{bus: m.bus, node: m.node}
	const fault = device.S2CRFault << device.S2CRTypeShift
	bank := uint32(n)
	va := uint32(m.VABits())

	r.write32(device.SMMU, s2cr(n), fault|bank)
	r.write32(device.SMMU, cba2r(n), device.CBA2RVA64)
	r.write32(device.SMMU, cbar(n), device.CBARS1BypassS2<<device.CBARTypeShift)
	// T0SZ = 64 - width, 4 KiB granule (TG0 = 0); Arm IHI 0062 TCR.
	r.write32(device.SMMU, device.Bank(n, device.TCR), 64-va)
	if m.tables != nil {
		r.write64(device.SMMU, device.Bank(n, device.TTBR0), m.tables(n))
	}
	r.write32(device.SMMU, device.Bank(n, device.TLBIALL), 0)
	r.write32(device.SMMU, device.Bank(n, device.TLBSYNC), 0)
	r.write32(device.SMMU, device.Bank(n, device.FSR), ^uint32(0))
	sctlr := uint32(device.SCTLRDriver)
	if m.stall {
		sctlr |= device.SCTLRCFCFG
	}
	r.write32(device.SMMU, device.Bank(n, device.SCTLR), sctlr)
	r.write32(device.SMMU, smr(n), device.SMRValid|uint32(n))
	r.write32(device.SMMU, s2cr(n), device.S2CRTranslate<<device.S2CRTypeShift|bank)

	r.writePeers(n, peers)
	r.write64(device.PL, pktzCfg(n), pktzValue(n, m.node, pdid))
	p := device.MailboxProcess + n
	r.write64(device.PL, pktzCfg(p), pktzValue(p, m.node, pdid))
	r.write64(device.PL, mboxCfg(p), uint64(pdid)|device.CfgEnable)
	r.write64(device.PL, pdCfg(n), device.PDCfg(pdid, generation))
	r.arrived(pdCfg(n))
	return r.err
}

// Grant admits pdid to the domain of a slot; admitting it twice is not an error. The caller must
// check that the request comes from the domain's owner. An error matches ErrNoDomain, ErrPDID,
// ErrPeers, ErrNames or device.ErrGone.
func (m *Manager) Grant(n int, pdid device.PDID) error {
	s, err := m.live(n)
	if err != nil {
		return err
	}
	if nobody(pdid) {
		return fmt.Errorf("grant: %w; name the PDID of a domain (exanetctl domain show)", ErrPDID)
	}
	if pdid == s.d.PDID || slices.Contains(s.d.Peers, pdid) {
		return nil
	}
	if len(s.d.Peers) >= device.PeersPerSlot {
		return &PeersError{Slot: n, Wanted: len(s.d.Peers) + 1, Limit: device.PeersPerSlot}
	}
	if err := m.dir.hold(s.d.UID, []device.PDID{pdid}); err != nil {
		return fmt.Errorf("node %d, slot %d: grant: %w", m.node, n, err)
	}
	peers := append(slices.Clone(s.d.Peers), pdid)
	r := regs{bus: m.bus, node: m.node}
	k := (len(peers) - 1) / 4
	var v uint64
	for i, p := range peers[4*k:] {
		v |= uint64(p) << (16 * i)
	}
	r.write64(device.PL, pdPeers(n, k), v)
	if r.arrived(pdPeers(n, k)); r.err != nil {
		m.dir.release(s.d.UID, []device.PDID{pdid})
		return r.err
	}
	s.d.Peers = peers
	s.named = append(s.named, pdid)
	return nil
}

func (m *Manager) live(n int) (*slot, error) {
	if n < 0 || n >= device.Slots || !m.slots[n].used || m.slots[n].d.State != Live {
		return nil, fmt.Errorf("node %d, slot %d: %w; exanetctl domain show lists them", m.node, n, ErrNoDomain)
	}
	return &m.slots[n], nil
}
