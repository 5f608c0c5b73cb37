package fault

import "github.com/exanet/pfd/device"

// Counts are one slot's, or all slots', counters since the driver's start; a slot's counters
// continue across its domains.
type Counts struct {
	Entries      uint64 // FIFO entries and FAR faults of known domains
	Local        uint64 // of these, source faults
	Remote       uint64 // of these, destination faults
	Duplicates   uint64 // entries for pages that their block already waits for
	PageIns      uint64 // Pager.PageIn calls that brought pages in
	Pages        uint64 // pages that these calls made resident, with all pages of the folios that came in
	Ahead        uint64 // pages that policy Adaptive asked for ahead of their use
	Unused       uint64 // of these, pages whose use was never observed
	Minor        uint64 // of the PageIn calls, by kind of fault
	Major        uint64
	Permission   uint64
	Unresolvable uint64 // pages that are not mapped, not permitted, or gone
	RAPF         uint64 // blocks whose retransmission was requested
	RAPFFail     uint64 // blocks ended by the fail bit
	Refused      uint64 // RAPFs that the packetizer refused (STATUS 2)
	Busy         uint64 // RAPFs abandoned because the packetizer stayed busy
	Delegated    uint64 // questions to the process
	DelegateFull uint64 // questions not sent: its socket is full (EAGAIN)
	DelegateErr  uint64 // questions not sent for another reason
	Stuck        uint64 // page-ins that hung: others ran beside them
	Stalls       uint64 // accesses that waited for RESUME
	Dropped      uint64 // entries dropped because the slot's tables are full
}

// Add adds o to c.
func (c *Counts) Add(o *Counts) {
	for i, v := range o.fields() {
		*c.fields()[i] += *v
	}
}

// Less returns the counts of c minus those of an earlier base.
func (c Counts) Less(base *Counts) Counts {
	for i, v := range base.fields() {
		*c.fields()[i] -= *v
	}
	return c
}

func (c *Counts) fields() [22]*uint64 {
	return [...]*uint64{
		&c.Entries, &c.Local, &c.Remote, &c.Duplicates, &c.PageIns, &c.Pages, &c.Ahead, &c.Unused, &c.Minor, &c.Major, &c.Permission, &c.Unresolvable,
		&c.RAPF, &c.RAPFFail, &c.Refused, &c.Busy, &c.Delegated, &c.DelegateFull, &c.DelegateErr, &c.Stuck, &c.Stalls, &c.Dropped,
	}
}

// Stats are the driver's counters.
type Stats struct {
	Slots [device.Slots]Counts
	Total Counts // the slots' sum

	Interrupts  uint64 // calls of Interrupt for vectors 0 and 1
	Spurious    uint64 // of these, calls that found nothing new
	Faults      uint64 // FSR values read that were not zero
	Multi       uint64 // of these, with FSR.MULTI
	Global      uint64 // GFSR values read that were not zero
	StuckFSR    uint64 // banks whose FSR did not clear
	Rounds      uint64 // runs of the page-in half
	Overflows   uint64 // RXFIFO or TXFIFO found with its overflow bit set
	Invalid     uint64 // entries without all Valid bits
	UnknownPDID uint64 // entries of unknown domains: ended by the guard, then NACK 5
	BadPage     uint64 // entries past the address width
	Unrecorded  uint64 // records that were overwritten before Observe: more than RecordDepth faults waited
	Gone        uint64 // accesses that found the device gone

	Highest [2]int // highest level seen of RXFIFO and TXFIFO
}
