package mediate

import "github.com/exanet/pfd/device"

// wakeTargets wakes the sleeping processes into whose memory completion words were written since
// the last check. Vector 3 reports such words, or a completed transfer; WORDS says whose. The
// words of a slot without a sleeper are not read, since a process checks its words before it
// sleeps.
//
// An event of the device that names the slot replaces the reads.
func (n *node) wakeTargets(l *link) {
	n.written = false
	if !l.peek {
		return
	}
	for _, s := range n.slots {
		if s == nil || !s.att.Pages.Waiting() {
			continue
		}
		v, err := n.windows[device.PL].Read64(device.PLWords + 8*uint32(s.index))
		if err != nil {
			return // a device that is gone is posted
		}
		if v != s.words {
			s.words = v
			s.att.Pages.Notify()
		}
	}
}
