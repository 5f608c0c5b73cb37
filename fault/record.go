package fault

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
)

// RecordDepth is how many faults Records remembers.
const RecordDepth = 1024

// Outcome says what became of a fault.
type Outcome uint8

// The outcomes.
const (
	Pending      Outcome = iota // the page-in is queued or under way
	Resolved                    // resident; the RAPF went out, or none was due
	Failed                      // unresolvable: a RAPF with the fail bit went out
	Delegated                   // the process was asked; it answers the sender itself, or declines (another record)
	Unsent                      // nothing was sent: the sender's guard recovers
	Removed                     // the domain went away in between
	outcomeCount                // number of outcomes
)

var outcomeNames = [outcomeCount]string{"pending", "resolved", "failed", "delegated", "unsent", "removed"}

// String gives the outcome as tables have it.
func (o Outcome) String() string {
	if o >= outcomeCount {
		return "outcome?"
	}
	return outcomeNames[o]
}

// Record tells one fault's way. The times are nanoseconds of Config.Now; 0 means
// that the stage was not reached.
type Record struct {
	Page        device.VA // the faulting page's address
	Slot        int
	PDID        device.PDID
	Source      device.NodeID // node whose transaction it is
	Transaction device.TransactionID
	Sequence    device.Sequence
	Write       bool // at the destination
	Block       bool // false: told by FAR alone, without transaction
	Method      Method
	Policy      Policy
	Kind        gup.Kind // valid from Resident on
	Outcome     Outcome
	Cause       error // why the page is not there, where it is not
	Answers     bool  // of the faults that one answer to the sender is for, it stands for the answer

	Interrupt int64 // the interrupt half that woke the round
	Drained   int64 // the entry was read
	Started   int64 // its page-in began
	Resident  int64 // its page-in ended
	Answered  int64 // the RAPF, or the question to the delegate, went out

	shown    bool // Config.Observe has had it
	declined bool // the process could not bring it in, and the driver does
}

// log is a ring of records. A record is named by its number since the start,
// so that a late stage of one that was overwritten finds that out.
type log struct {
	ring [RecordDepth]Record
	next uint64
}

func (l *log) add(r Record) uint64 {
	n := l.next
	l.ring[n%RecordDepth] = r
	l.next++
	return n
}

// record keeps a fault's record, in the place of the oldest. Where the outcome of that
// one is not final yet, Config.Observe will not have it: it is counted.
func (d *Driver) record(r Record) uint64 {
	if d.observe != nil && d.log.next >= RecordDepth && !d.log.ring[d.log.next%RecordDepth].shown {
		d.stats.Unrecorded++
	}
	return d.log.add(r)
}

func (l *log) at(n uint64) *Record {
	if n >= l.next || l.next-n > RecordDepth {
		return nil
	}
	return &l.ring[n%RecordDepth]
}

// final shows a record whose outcome is final to whoever looks.
func (d *Driver) final(r *Record) {
	if d.observe != nil && !r.shown {
		r.shown = true
		d.observe(r)
	}
}

// Records gives the last n faults, the oldest first.
func (d *Driver) Records(n int) []Record {
	have := min(d.log.next, RecordDepth)
	if n < 0 || uint64(n) > have {
		n = int(have)
	}
	out := make([]Record, 0, n)
	for i := d.log.next - uint64(n); i < d.log.next; i++ {
		out = append(out, d.log.ring[i%RecordDepth])
	}
	return out
}
