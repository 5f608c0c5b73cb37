package mediate

import "github.com/exanet/pfd/device"

// wakeTargets wakes the sleeping processes into whose memory completion words were written since
// the last check. Vector 3 reports such words, or a completed transfer; WORDS says whose. The
// words of a slot without a sleeper and without a ring are not read, since a process checks its words
// before it sleeps. Whose ring watches them is unknown: all of its rings wake the process.
//
// An event of the device that names the slot replaces the reads.
func (n *node) wakeTargets(l *link) {
	n.written = false
	for _, s := range n.slots {
		if s == nil || !s.att.Pages.Waiting() && s.att.Bells.Len() == 0 {
			continue
		}
		if !l.peek { // the device has no WORDS: each slot may be meant
			s.att.Pages.Notify()
			s.att.Bells.WakeAll()
			continue
		}
		v, err := n.windows[device.PL].Read64(device.PLWords + 8*uint32(s.index))
		if err != nil {
			return // a device that is gone is posted
		}
		if v != s.words {
			s.words = v
			s.att.Pages.Notify()
			s.att.Bells.WakeAll()
		}
	}
}
