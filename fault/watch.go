package fault

import (
	"math/bits"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
)

// PageIn tells one call of a Pager, be there a fault that waits for its pages or not.
// The times are nanoseconds of Config.Now.
type PageIn struct {
	Page           device.VA // the first
	Slot           int
	PDID           device.PDID
	Method         Method
	Policy         Policy
	Pages          int // that were asked for
	Got, New       int // that are there, and of these, were not before
	Write          bool
	Kind           gup.Kind
	Err            error // why the first page is not there
	Started, Ended int64
}

// pagedIn tells a call that has ended, before the faults that waited for it.
func (d *Driver) pagedIn(s *slot, c *call, got uint64) {
	if d.observePageIn == nil {
		return
	}
	d.observePageIn(&PageIn{
		Page: device.VA(c.start << device.PageShift), Slot: c.slot, PDID: s.target.PDID,
		Method: s.target.Method, Policy: s.target.Policy,
		Pages: int(c.end - c.start), Got: bits.OnesCount64(got), New: bits.OnesCount64(c.res.New & got),
		Write: c.write, Kind: c.res.Kind, Err: c.res.Err, Started: c.started, Ended: c.ended,
	})
}
