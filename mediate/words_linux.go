package mediate

import "github.com/exanet/pfd/device"

// wakeTargets wakes the processes that wait and into whose memory completion words
// were written since it looked last. Vector 3 says that there are such words, or a
// transfer is done; WORDS whose. A slot without a sleeper is not asked for: who goes
// to sleep from now on looks at its words first.
//
// An event of the device's that names the slot takes the place of the reads.
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
