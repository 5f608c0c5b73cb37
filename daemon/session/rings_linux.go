package session

import (
	"context"
	"fmt"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/internal/limits"
)

// ringsPerUID limits the rings of the processes of one uid, each of which costs pfd a descriptor.
// Values below are defined by this project.
const (
	ringsPerUID = 4 * attach.MaxRings
	allRings    = 16 * attach.MaxRings
)

// ringer makes and removes the rings of a session. The connection's reader calls it.
type ringer struct{ s *session }

// Ring implements attach.Ringer.
func (h ringer) Ring(r attach.Ring) (fd int, err error) {
	s := h.s
	memory, err := h.armed(&r)
	if err != nil {
		return -1, err
	}
	if !s.d.rings.Take(s.uid) {
		return -1, refusal(attach.CodeLimit, "uid %d has %d rings, its maximum, or all users together have as many as pfd has descriptors for: "+
			"close some, or give pfd more descriptors (LimitNOFILE=, ulimit -n)", s.uid, s.d.rings.Per())
	}
	b, fd, err := attach.NewBell(&r, memory, func(f func()) { go s.d.turns.Do(s.uid, f) })
	if err == nil {
		err = h.own(func() error {
			switch {
			case s.bells.Len() >= attach.MaxRings:
				return refusal(attach.CodeLimit, "the process has %d rings, the maximum: close some", attach.MaxRings)
			case !s.bells.Add(b):
				return fmt.Errorf("%d bytes at %v: another ring watches some of them: close that first", r.Size, r.VA)
			}
			return nil
		})
		if err != nil {
			_ = b.Close() // it was not used
			attach.Descriptors{fd}.Close()
		}
	} else {
		err = refusal(attach.CodeInternal, "pfd: %v", limits.Explain(err))
	}
	if err != nil {
		s.d.rings.Give(s.uid)
		return -1, err
	}
	return fd, nil
}

// armed returns the memory by which pfd reaches the ring's word ARM, nil if the machine must not touch
// memory of a process. The word must be shared for writing.
func (h ringer) armed(r *attach.Ring) (attach.Armed, error) {
	s := h.s
	if m := s.d.features.Sharing; m != nil && m.Writable(s.n.index, s.joined.domain.Slot, r.Arm) {
		return nil, nil
	}
	if s.view != nil {
		if _, n := s.view.Shares(r.Arm, 1, true); n > 0 {
			s.d.turns.Quick(s.uid, func() { s.view.Look(r.Arm, 1) })
			return s.view, nil
		}
	}
	return nil, fmt.Errorf("ARM at %v lies in no memory that the process shares for writing and pfd has mapped: "+
		"take it from Alloc or exanet_alloc, or share a memfd", r.Arm)
}

// Unring implements attach.Ringer.
func (h ringer) Unring(r attach.Range) error {
	var b *attach.Bell
	err := h.own(func() error {
		if b = h.s.bells.Remove(r.VA, r.Size); b == nil {
			return fmt.Errorf("no ring has %d bytes at %v", r.Size, r.VA)
		}
		return nil
	})
	if err != nil {
		return err
	}
	h.s.d.rings.Give(h.s.uid)
	return b.Close()
}

// own runs f on the goroutine that owns the session's node.
func (h ringer) own(f func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), ownerTime)
	defer cancel()
	return h.s.d.Own(ctx, h.s.n, f)
}

// unrung closes the session's rings after its slot was detached.
func (s *session) unrung() {
	for range s.bells.Close() {
		s.d.rings.Give(s.uid)
	}
}
