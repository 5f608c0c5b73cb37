package domain

import (
	"time"

	"github.com/exanet/pfd/device"
)

// Waits between two looks at TLBSTATUS: from pollFirst, doubled to pollLast
// (ours). An access may be stuck as long as its owner likes (a userfaultfd that
// nobody serves), so there is no end to them.
const (
	pollFirst = 50 * time.Microsecond
	pollLast  = 20 * time.Millisecond
)

// Destroy ends the domain of a slot: from its return on nothing of the domain
// sends or is let in, and accesses in flight come to their end. When the last of
// them is over the slot and the member index are free and after is called, on
// the owning goroutine; after may be nil. A second call for a draining slot only
// adds its after. An error matches ErrNoDomain; a device that is gone ends the
// domain at once.
func (m *Manager) Destroy(n int, after func()) error {
	if n >= 0 && n < device.Slots && m.slots[n].used && m.slots[n].d.State == Draining {
		m.slots[n].add(after)
		return nil
	}
	s, err := m.live(n)
	if err != nil {
		return err
	}
	s.d.State = Draining
	s.add(after)

	r := regs{bus: m.bus, node: m.node}
	r.write64(device.PL, pdCfg(n), 0)
	p := device.MailboxProcess + n
	r.write64(device.PL, pktzCfg(p), 0)
	r.write64(device.PL, pktzCfg(n), 0)
	r.write64(device.PL, mboxCfg(p), 0)
	r.writePeers(n, nil)
	r.write32(device.SMMU, s2cr(n), device.S2CRFault<<device.S2CRTypeShift|uint32(n))
	r.write32(device.SMMU, device.Bank(n, device.TLBIALL), 0)
	r.write32(device.SMMU, device.Bank(n, device.TLBSYNC), 0)
	m.poll(n)
	return nil
}

func (s *slot) add(after func()) {
	if after != nil {
		s.done = append(s.done, after)
	}
}

// poll looks whether accesses of the bank are still in flight, and again later
// if so. A device that does not answer has none that could still reach memory by
// this driver.
func (m *Manager) poll(n int) {
	s := &m.slots[n]
	r := regs{bus: m.bus, node: m.node}
	if m.stall {
		// Nobody serves the domain's faults any more.
		r.write32(device.SMMU, device.Bank(n, device.RESUME), device.ResumeTerminate)
	}
	if r.read32(device.SMMU, device.Bank(n, device.TLBSTATUS))&1 == 0 {
		m.quiet(n)
		return
	}
	wait := pollLast
	if s.polls < 16 {
		wait = min(pollFirst<<s.polls, pollLast)
		s.polls++
	}
	m.after(wait, func() { m.bus.Post(func() { m.poll(n) }) })
}

// quiet frees a slot. Faults that the last accesses left in the bank must not
// be taken for those of the next domain.
func (m *Manager) quiet(n int) {
	r := regs{bus: m.bus, node: m.node}
	r.write32(device.SMMU, device.Bank(n, device.FSR), ^uint32(0))
	s := &m.slots[n]
	if s.used {
		m.dir.release(s.named)
		m.dir.leave(m.node, s.d.UID, s.d.Group, s.d.Member)
	}
	done := s.done
	*s = slot{}
	for _, f := range done {
		f()
	}
}
