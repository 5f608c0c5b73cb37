package scenario

import (
	"bytes"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/sim"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/wire"
)

// judge checks what is written to the processes' memory: the bytes of transfers, where they belong, and
// nothing of a transfer after its end.
type judge struct {
	sim.Nobody
	r *run
}

// Failed implements sim.Observer.
func (j *judge) Failed() error { return j.r.err }

// Moves implements sim.Observer.
func (x *judge) Moves(_ *sim.Node, p *sim.Process, a *pldma.Access) {
	if p == nil {
		return
	}
	s := x.r.seats[p.Domain.Node]
	if j := s.regionAt(a.VA); s.muted && p == s.Process && j != nil && !j.Read && !a.Ordered && j.from.Domain.PDID != p.Domain.PDID {
		x.r.wrong("%s: %d bytes are written, although the right to it is withdrawn", j.name(), len(a.Data))
	}
}

// Landed implements sim.Observer.
func (x *judge) Landed(p *sim.Process, a *pldma.Access) {
	r := x.r
	s := r.seats[p.Domain.Node]
	if p != s.Process {
		return // a foreign process, or one that has ended since
	}
	if a.Ordered {
		if j := s.wordsAt(a.VA); j == nil {
			r.wrong("completion words are written to %v of node %d, where none belong", a.VA, s.node)
		} else {
			j.words = true
		}
		return
	}
	j := s.regionAt(a.VA)
	at := int(a.VA - memoryBase)
	switch {
	case j == nil || at+len(a.Data) > j.dstAt+j.Size:
		r.wrong("%d bytes are written to %v of node %d, where no transfer's destination is", len(a.Data), a.VA, s.node)
		return
	case j.to != p:
		r.wrong("%s: %d bytes are written to a process that follows the destination's", j.name(), len(a.Data))
	case j.ended >= 0 && j.status == 0:
		r.wrong("%s: %d bytes are written after its end", j.name(), len(a.Data))
	case j.started == 0:
		r.wrong("%s: %d bytes are written before its start", j.name(), len(a.Data))
	}
	off := at - j.dstAt
	for o := off; o < off+len(a.Data); o += device.MTU {
		j.landed[o/device.BlockSize] |= 1 << (o % device.BlockSize / device.MTU)
	}
	if starts := uint64(a.VA)%device.BlockSize == 0 || off == 0; !r.content && starts && len(a.Data) >= sim.MarkSize {
		if mark := j.src.Mark(j.desc.Src + device.VA(off)); !bytes.Equal(a.Data[:sim.MarkSize], mark[:]) {
			r.wrong("%s: the bytes at offset %d are not those of the source there", j.name(), off)
		}
	}
}

// wordsAt returns the transfer whose completion words are at a place, nil if there is none.
func (s *seat) wordsAt(va device.VA) *job {
	i := slices.IndexFunc(s.regions, func(g region) bool {
		return g.job.wordsAt >= 0 && memoryBase+device.VA(g.job.wordsAt) == va
	})
	if i < 0 {
		return nil
	}
	return s.regions[i].job
}

// ended judges a transfer that has ended.
func (r *run) ended(j *job) {
	if j.status != 0 {
		if j.doomed == "" && !j.src.dead && !j.dst.dead {
			why := ""
			if j.status == device.StatusLimit {
				why = ": a time-out that is shorter than frames wait in the network ends transfers, too"
			}
			if r.hopeless() {
				return
			}
			r.wrong("%s failed with status %d, although nothing was injected that explains it%s", j.name(), j.status, why)
		}
		return
	}
	for k, got := range j.landed {
		n := min(j.Size-k*device.BlockSize, device.BlockSize)
		if want := wire.All(n); got&want != want {
			r.wrong("%s has completed, but of bytes %d to %d packets %#x are missing", j.name(), k*device.BlockSize, k*device.BlockSize+n, want&^got)
			return
		}
	}
	r.same(j)
}

// hopeless reports whether so many frames are lost that all attempts for a block may be.
func (r *run) hopeless() bool {
	const most = 0.5
	for i := range r.file.Inject {
		if r.file.Inject[i].Probability > most {
			return true
		}
	}
	return false
}

// same checks a completed transfer's bytes.
func (r *run) same(j *job) {
	if r.content && !j.lost && !bytes.Equal(j.dst.Data[j.dstAt:j.dstAt+j.Size], j.want) {
		r.wrong("%s has completed with other bytes than the source's", j.name())
	}
}

// judge checks everything when nothing is left to happen.
func (r *run) judge() error {
	for i := range r.jobs {
		if j := &r.jobs[i]; j.status == 0 {
			r.same(j)
		}
	}
	if err := r.world.Audit(true); err != nil {
		r.wrong("%v", err)
	}
	for _, s := range r.seats {
		if !bytes.Equal(s.outside(), s.before) {
			r.wrong("memory of node %d outside of all destinations has changed", s.node)
		}
		if err := r.world.Node(s.node).SOC.Audit(); err != nil {
			r.wrong("node %d: %v", s.node, err)
		}
	}
	return r.err
}

// Sent implements sim.Observer.
func (x *judge) Sent(n *sim.Node, f *wire.Frame) {
	x.r.log.sent(n, f)
	x.r.sent(f)
}

// Carried implements sim.Observer.
func (x *judge) Carried(out []link.Delivery) { x.r.log.carried(out) }

// Arrived implements sim.Observer.
func (x *judge) Arrived(f *wire.Frame, _ uint64) { x.r.log.arrived(f) }

// Reported implements sim.Observer.
func (x *judge) Reported(*sim.Node, *soc.Action) {}
