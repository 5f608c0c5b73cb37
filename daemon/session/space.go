package session

import (
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space"
)

// makeSpace makes the process's memory as a stack: each layer does what it can and leaves the rest to the
// one below. A device with pfd's own tables accesses shared memory only. It needs the process's memory
// only to page in before pfd enters the pages, and makeSpace returns nil if it does not.
func (s *session) makeSpace() space.Space {
	var mem space.Space
	switch {
	case s.memport != nil:
		mem = space.NewHelper(s.memport)
	case s.method == pagein.UFFD:
		s.regions = gup.NewRegions(s.process)
		mem = space.NewDirect(s.process, s.regions)
	default:
		mem = space.NewDirect(s.process, gup.NewShared(s.process, s.view))
	}
	if s.view != nil {
		mem = space.NewShared(s.view, mem, s.memport != nil)
	}
	elsewhere := s.d.features.Sharing != nil // the device, which walks pfd's own tables
	switch {
	case s.method == pagein.Populate:
		p := space.Process{Looks: s.process, Ask: s.delegate().numbered, Answers: s.served}
		if s.memport != nil {
			p.Looks, p.Slow = s.memport, true
		}
		return space.NewAsked(p, mem, !elsewhere) // the engine polls it, mediate does not
	case elsewhere && s.regions == nil:
		return nil
	}
	return mem
}
