package fault

import (
	"math/bits"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
)

// PageIn describes one call of a Pager, whether or not a fault waits for its pages. The times are
// nanoseconds of Config.Now.
type PageIn struct {
	Page           device.VA // the first
	Slot           int
	PDID           device.PDID
	Method         Method
	Policy         Policy
	Pages          int // requested
	Got, New       int // resident after the call; of these, not resident before
	Write          bool
	Kind           gup.Kind
	Err            error // why the first page is not resident
	Started, Ended int64
}

// pagedIn reports a completed call, before the faults that waited for it.
func (d *Driver) pagedIn(s *slot, c *call, got uint64) {
	if d.observePageIn == nil {
		return
	}
	d.observePageIn(&PageIn{
		Page: device.VA(c.start << device.PageShift), Slot: c.slot, PDID: s.target.PDID,
		Method: s.target.Method, Policy: s.target.Policy,
		Pages: int(c.end - c.start), Got: bits.OnesCount64(got), New: bits.OnesCount64(c.op.Paged.New & got),
		Write: c.write, Kind: c.op.Paged.Kind, Err: c.op.Paged.Err, Started: c.op.Started, Ended: c.op.Ended,
	})
}
