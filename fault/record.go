package fault

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
)

// RecordDepth is the number of faults that Records remembers.
const RecordDepth = 1024

// Outcome is the result of a fault.
type Outcome uint8

// The outcomes.
const (
	Pending      Outcome = iota // the page-in is queued or in flight
	Resolved                    // resident; the RAPF was sent, or none was due
	Failed                      // unresolvable: a RAPF with the fail bit was sent
	Delegated                   // the process was asked; it answers the sender itself, or declines (another record)
	Unsent                      // nothing was sent: the sender's guard recovers
	Removed                     // the domain was removed in the meantime
	outcomeCount                // number of outcomes
)

var outcomeNames = [outcomeCount]string{"pending", "resolved", "failed", "delegated", "unsent", "removed"}

// String returns the outcome's name, as in tables.
func (o Outcome) String() string {
	if o >= outcomeCount {
		return "outcome?"
	}
	return outcomeNames[o]
}

// Record describes the stages of one fault. The times are nanoseconds of Config.Now; 0 means that
// the stage was not reached.
type Record struct {
	Page        device.VA // the faulting page's address
	Slot        int
	PDID        device.PDID
	Source      device.NodeID // node of the transaction
	Transaction device.TransactionID
	Sequence    device.Sequence
	Write       bool // at the destination
	Block       bool // false: reported only by FAR, without a transaction
	Method      Method
	Policy      Policy
	Kind        gup.Kind // valid from Resident on
	Outcome     Outcome
	Cause       error // why the page is not resident, if it is not
	Answers     bool  // of the faults that share one answer to the sender, this one counts it

	Interrupt int64 // the interrupt half that woke the round
	Drained   int64 // the entry was read
	Started   int64 // its page-in began
	Resident  int64 // its page-in ended
	Answered  int64 // the RAPF, or the question to the delegate, was sent

	shown    bool // Config.Observe was called
	declined bool // the process could not page it in, and the driver does
}

// Began returns the time of its first stage.
func (r *Record) Began() int64 {
	if r.Interrupt != 0 {
		return r.Interrupt
	}
	return r.Drained
}

// PageIn describes one page-in, whether or not a fault waits for its pages. The times are
// nanoseconds of Config.Now.
type PageIn struct {
	Page           device.VA // the first
	Slot           int
	PDID           device.PDID
	Method         Method
	Policy         Policy
	Pages          int // requested
	Got            int // of these, resident after the call
	New            int // pages that it made resident, with those that came in the same folios
	Write          bool
	Kind           gup.Kind
	Err            error // why the first page is not resident
	Started, Ended int64
}

// log is a ring of records. A record is identified by its number since the start, so that a late
// stage detects that its record was overwritten.
type log struct {
	ring [RecordDepth / logPart]*[logPart]Record
	next uint64
}

// logPart is the number of records whose memory is allocated together (defined by this project): a
// simulation has thousands of drivers, and few of their records.
const logPart = 64

func (l *log) add(r Record) uint64 {
	n := l.next
	part := &l.ring[n%RecordDepth/logPart]
	if *part == nil {
		*part = new([logPart]Record)
	}
	*l.slot(n) = r
	l.next++
	return n
}

// slot returns the place of a record that has memory.
func (l *log) slot(n uint64) *Record { return &l.ring[n%RecordDepth/logPart][n%logPart] }

func (l *log) at(n uint64) *Record {
	if n >= l.next || l.next-n > RecordDepth {
		return nil
	}
	return l.slot(n)
}
