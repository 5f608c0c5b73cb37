package domain

import (
	"fmt"
	"time"

	"github.com/exanet/pfd/device"
)

// openWindow is a memory window of a slot: free, open, or withdrawn and not yet drained.
type openWindow struct {
	device.MemoryWindow
	used, closing bool
}

// Window opens a range of the memory of a slot's domain to a peer, with the window's rights, until
// CloseWindow or the domain's end. Windows that overlap add up. Errors match ErrNoDomain,
// ErrNoWindows, ErrWindow, ErrWindowLimit, ErrNames or device.ErrGone.
func (m *Manager) Window(n int, w device.MemoryWindow) error {
	s, err := m.live(n)
	if err != nil {
		return err
	}
	if err := m.checkWindow(&w); err != nil {
		return err
	}
	i := 0
	for i < len(s.windows) && s.windows[i].used {
		i++
	}
	if i == len(s.windows) {
		return fmt.Errorf("node %d, slot %d: %w: it has %d, the maximum; close one, or open one window for several ranges", m.node, n, ErrWindowLimit, i)
	}
	if err := m.dir.hold(s.d.UID, []device.PDID{w.Peer}); err != nil {
		return fmt.Errorf("node %d, slot %d: %w", m.node, n, err)
	}
	r := regs{bus: m.bus, node: m.node}
	r.write32(device.PL, device.PLWinSelect, device.WinSelect(n, i))
	r.write64(device.PL, device.PLWinVA, uint64(w.VA))
	r.write64(device.PL, device.PLWinBytes, w.Bytes)
	r.write64(device.PL, device.PLWinCtrl, device.WinCtrl(w.Peer, w.Rights))
	if r.arrived(device.PLWinCtrl); r.err != nil {
		m.dir.release(s.d.UID, []device.PDID{w.Peer})
		return r.err
	}
	s.windows[i] = openWindow{MemoryWindow: w, used: true}
	return nil
}

// checkWindow checks what does not depend on the slot's other windows.
func (m *Manager) checkWindow(w *device.MemoryWindow) error {
	limit := uint64(1) << m.VABits()
	switch {
	case m.caps&device.CapsWindows == 0:
		return fmt.Errorf("node %d: %w (CAPS[30]); admit the peer to the whole domain (exanetctl domain grant)", m.node, ErrNoWindows)
	case w.Bytes == 0:
		return fmt.Errorf("%w: 0 bytes at %v: give at least one", ErrWindow, w.VA)
	case uint64(w.VA) >= limit || w.Bytes > limit-uint64(w.VA):
		return fmt.Errorf("%w: %d bytes at %v pass the end of the node's address space of %d bits", ErrWindow, w.Bytes, w.VA, m.VABits())
	case w.Rights == 0 || w.Rights&^device.AllRights != 0:
		return fmt.Errorf("%w: rights %#x: give one or more of read (1), write (2), atomic (4) and messages (8)", ErrWindow, uint8(w.Rights))
	case w.Peer == device.PDIDDriver:
		return fmt.Errorf("%w: %w: name the PDID of a domain, or 0 for every PDID", ErrWindow, ErrPDID)
	}
	return nil
}

// CloseWindow withdraws a window, given as it was opened: its transfers in flight end with status 5,
// unless another window admits them. When nothing that only this window admitted is accessed any
// more, after is called on the owning goroutine, possibly before CloseWindow returns. Errors match
// ErrNoDomain, ErrNoWindow or device.ErrGone; after is then not called.
func (m *Manager) CloseWindow(n int, w device.MemoryWindow, after func()) error {
	s, err := m.live(n)
	if err != nil {
		return err
	}
	for i := range s.windows {
		x := &s.windows[i]
		if !x.used || x.closing || x.MemoryWindow != w {
			continue
		}
		r := regs{bus: m.bus, node: m.node}
		r.write32(device.PL, device.PLWinSelect, device.WinSelect(n, i))
		r.write64(device.PL, device.PLWinCtrl, device.WinCtrl(w.Peer, w.Rights)&^device.CfgEnable)
		if r.err != nil {
			return r.err
		}
		x.closing = true
		m.pollWindow(n, i, s.d.Generation, pollFirst, after)
		return nil
	}
	return fmt.Errorf("node %d, slot %d: %w of %d bytes at %v for PDID %d with rights %v; exanetctl domain window lists them", m.node, n, ErrNoWindow, w.Bytes, w.VA, w.Peer, w.Rights)
}

// pollWindow ends the withdrawal of window i of a domain when it is not busy any more, and
// otherwise polls again, with increasing pauses.
func (m *Manager) pollWindow(n, i int, g device.Generation, pause time.Duration, after func()) {
	s := &m.slots[n]
	if !s.used || s.d.Generation != g {
		after() // the domain has drained as a whole
		return
	}
	if s.d.State == Draining {
		s.add(after)
		return
	}
	r := regs{bus: m.bus, node: m.node}
	r.write32(device.PL, device.PLWinSelect, device.WinSelect(n, i))
	if r.read64(device.PL, device.PLWinCtrl)&device.WinBusy == 0 {
		m.dir.release(s.d.UID, []device.PDID{s.windows[i].Peer})
		s.windows[i] = openWindow{}
		after()
		return
	}
	m.after(pause, func() {
		m.bus.Post(func() { m.pollWindow(n, i, g, min(2*pause, pollLast), after) })
	})
}

// openWindows returns the slot's windows that are not withdrawn.
func (s *slot) openWindows() (list []device.MemoryWindow) {
	for i := range s.windows {
		if x := &s.windows[i]; x.used && !x.closing {
			list = append(list, x.MemoryWindow)
		}
	}
	return list
}
