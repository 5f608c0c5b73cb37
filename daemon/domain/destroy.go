package domain

import (
	"time"

	"github.com/exanet/pfd/device"
)

// Interval between two polls of TLBSTATUS: from pollFirst, doubled up to pollLast (defined by
// this project). The number of polls is unlimited, because an access may hang for as long as its
// process chooses (a userfaultfd that is not served).
const (
	pollFirst = 50 * time.Microsecond
	pollLast  = 20 * time.Millisecond
)

// Destroy ends the domain of a slot. When it returns, the domain can neither send nor receive,
// and its accesses in flight drain. When the last has completed, the slot and the member index
// are free and after, which may be nil, is called on the owning goroutine. A second call for a
// draining slot only adds its after. An error matches ErrNoDomain; if the device is gone, the
// domain ends at once.
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

// poll checks whether accesses of the bank are still in flight and, if so, checks again later. A
// device that does not respond has no accesses that could still reach memory through this driver.
func (m *Manager) poll(n int) {
	s := &m.slots[n]
	r := regs{bus: m.bus, node: m.node}
	if m.stall {
		// The domain's faults are no longer served.
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

// quiet frees a slot. Faults that the last accesses left in the bank must not be attributed to
// the next domain.
func (m *Manager) quiet(n int) {
	r := regs{bus: m.bus, node: m.node}
	r.write32(device.SMMU, device.Bank(n, device.FSR), ^uint32(0))
	s := &m.slots[n]
	if s.used {
		m.dir.release(s.d.UID, s.named)
		for i := range s.windows {
			if s.windows[i].used {
				m.dir.release(s.d.UID, []device.PDID{s.windows[i].Peer})
			}
		}
		m.dir.leave(m.node, s.d.UID, s.d.Group, s.d.Member)
	}
	done := s.done
	*s = slot{}
	for _, f := range done {
		f()
	}
}
