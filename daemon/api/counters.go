package api

import (
	"errors"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/tally"
)

// faultCounters lists the counters of the fault driver.
func faultCounters(t *fault.Counts) []control.Counter {
	return []control.Counter{
		{Name: control.CounterFaults, Value: t.Entries, Help: "faults of known domains that were served"},
		{Name: "faults_local_total", Value: t.Local, Help: "of these, at a source"},
		{Name: "faults_remote_total", Value: t.Remote, Help: "of these, at a destination"},
		{Name: control.CounterMinor, Value: t.Minor, Help: "page-ins that read nothing from storage"},
		{Name: control.CounterMajor, Value: t.Major, Help: "page-ins that read from storage"},
		{Name: control.CounterPermission, Value: t.Permission, Help: "page-ins that copied a page before a write"},
		{Name: "faults_duplicate_total", Value: t.Duplicates, Help: "entries whose block already waited for its page"},
		{Name: "faults_delegated_total", Value: t.Delegated, Help: "faults that the process was asked to page in"},
		{Name: control.CounterPagesIn, Value: t.Pages, Help: "pages made resident by pfd, or by processes at its request; without those of method touch"},
		{Name: "faults_stalled_total", Value: t.Stalls, Help: "accesses that waited in the SMMU for their page (pfd --fault-mode stall)"},
		{Name: control.CounterAhead, Value: t.Ahead, Help: "pages that policy adaptive paged in ahead of their use"},
		{Name: control.CounterUnused, Value: t.Unused, Help: "of these, those that were never seen to be used"},
		{Name: control.CounterRAPF, Value: t.RAPF, Help: "retransmissions that pfd requested"},
		{Name: control.CounterFailed, Value: t.RAPFFail, Help: "blocks ended by the fail bit"},
		{Name: "rapf_unsent_total", Value: t.Refused + t.Busy, Help: "retransmission requests that the packetizer did not take"},
	}
}

// invalidationCounters lists invalidations, with ODP's names (docs/service.md).
func invalidationCounters(i tally.Invalidated) []control.Counter {
	return []control.Counter{
		{Name: control.CounterInvalidations, Value: i.Calls, Help: "invalidations of pages that the device could access, as far as pfd sees them"},
		{Name: control.CounterInvalidationPages, Value: i.Pages, Help: "pages that the device had and that were invalidated; for emulated nodes those that an access found gone"},
		{Name: control.CounterConflicts, Value: i.Conflicts, Help: "page-ins that collided with an invalidation"},
	}
}

// nodeCounters lists a node's counters, the driver's first, without the hardware's while the
// device is gone. On the owning goroutine.
func nodeCounters(f *session.Features, n *session.Node) ([]control.Counter, error) {
	hw, err := readCounters(n.Bus())
	away := errors.Is(err, device.ErrGone)
	if err != nil && !away {
		return nil, err
	}
	s := n.Stats()
	t, c := &s.Total, n.Counts()
	list := append(faultCounters(t), []control.Counter{
		{Name: "faults_dropped_total", Value: t.Dropped + s.BadPage + s.Invalid, Help: "entries that were not served: the guard time-out recovers"},
		{Name: control.CounterInterrupts, Value: s.Interrupts, Help: "interrupts that the fault driver took"},
		{Name: "faults_unrecorded_total", Value: s.Unrecorded, Help: "faults without a record: more were pending than pfd remembers"},
		{Name: control.CounterUnattributed, Value: s.UnknownPDID, Help: "entries of a PDID that no domain has"},
		{Name: "netlink_sent_total", Value: c.Asked.Sent, Help: "fault messages sent to processes"},
		{Name: "netlink_full_total", Value: c.Asked.Full, Help: "fault messages not sent: the process does not read"},
		{Name: "netlink_failed_total", Value: c.Asked.NoReceiver + c.Asked.Failed, Help: "fault messages not sent for another reason"},
		{Name: "netlink_strays_total", Value: c.Strays, Help: "messages of other senders to pfd's netlink socket, discarded"},
		{Name: control.CounterMailbox, Value: c.Mailbox, Help: "messages drained from pfd's mailboxes"},
		{Name: control.CounterAttached, Value: c.Attached, Help: "processes attached"},
		{Name: control.CounterEnded, Value: c.Ended, Help: "attachments ended"},
	}...)
	if accesses := f.Accesses; accesses != nil {
		a := accesses(n.Index())
		list = append(list,
			control.Counter{Name: control.CounterLeases, Value: a.LeasesLost, Help: "memory accesses that blocked so long that other threads serve their domain"},
			control.Counter{Name: control.CounterKicksMuted, Value: a.Muted, Help: "times that a process was not polled for a while, because its user kicked too often without work"},
			control.Counter{Name: control.CounterCallsRefused, Value: a.Refused, Help: "page-ins and memory accesses refused because no thread was left for a call that may hang"},
			control.Counter{Name: control.CounterShared, Value: a.Shared, Help: "walks and moves of shared memory that took no system call"},
			control.Counter{Name: control.CounterSharedMissed, Value: a.SharedMissed, Help: "walks of shared memory that found a page absent, or not yet entered by pfd"})
	}
	list = append(list, invalidationCounters(c.Invalidated)...)
	for c := range device.Counters {
		if away {
			break
		}
		list = append(list, control.Counter{Name: c.String() + "_total", Value: hw[c], Help: counterHelp[c]})
	}
	for i := range list {
		list[i].Node = n.Number()
	}
	return list, nil
}

// counterHelp describes the hardware's counters (spec/hardware.md 3, COUNTER: the names are the
// specification's, the meaning is defined by this project).
var counterHelp = [device.Counters]string{
	device.TXPackets:      "packets sent: of data, acknowledgements and messages",
	device.RXPackets:      "packets received: of data, acknowledgements and messages",
	device.TXBlocks:       "blocks sent for the first time (up to 16 KiB each); retransmits counts the others",
	device.RXBlocks:       "blocks whose data has been written to memory",
	device.Acks:           "blocks sent that their target has acknowledged",
	device.Nacks0:         "not used: a code 0 is an acknowledgement",
	device.Nacks1:         "blocks refused with code 1: a page of the destination was absent; they are retransmitted when pfd requests it",
	device.Nacks2:         "blocks refused with code 2: an address is not mapped or not permitted; their transfers fail",
	device.Nacks3:         "blocks refused with code 3: the target had no free receive context; they are retransmitted later",
	device.Nacks4:         "blocks refused with code 4: packets arrived corrupted; they are retransmitted later",
	device.Nacks5:         "blocks refused with code 5: the target does not admit this domain; their transfers fail",
	device.Nacks6:         "blocks refused with code 6, which is reserved; their transfers fail",
	device.Nacks7:         "blocks refused with code 7: the target's buffer was full; they are retransmitted later",
	device.Timeouts:       "blocks retransmitted because no answer came within timeout-us: lost packets, or a slow target",
	device.Retransmits:    "blocks retransmitted, for any reason",
	device.RAPFRx:         "requests for retransmission received (RAPF)",
	device.RAPFStale:      "of these, for a block that had ended or was already retransmitted: harmless",
	device.RAPFDenied:     "of these, refused: their sender has no part in the block",
	device.FIFOPush:       "page faults entered into the fault FIFOs",
	device.FIFODedup:      "page faults that the newest entry of their FIFO already reports",
	device.FIFOOverflows:  "page faults lost because their FIFO was full: the guard time-out retransmits the block",
	device.TLBL1Hit:       "translations found in the first-level TLB",
	device.TLBL2Hit:       "translations found in the second-level TLB",
	device.Walks:          "translations found in no TLB: page tables were walked",
	device.FaultTF:        "translation faults: the page was absent",
	device.FaultPF:        "permission faults: the page may not be written",
	device.BadAccess:      "accesses to missing registers, or of a wrong width",
	device.MsgDropped:     "messages dropped: malformed, or not expected",
	device.AckStale:       "acknowledgements of blocks that had ended or were retransmitted: harmless",
	device.PktStale:       "packets dropped: their block had ended, or no transfer announced it",
	device.CRCHeader:      "packets dropped for the checksum of their header",
	device.CRCPayload:     "packets whose data failed its checksum; their blocks are refused with code 4",
	device.MboxRefused:    "messages refused: the sender may not write to that mailbox, or it is full or off",
	device.DoorbellDenied: "transfers refused at their doorbell: a bad descriptor, a domain that is off, or a read that the target does not admit",
	device.Guards:         "paused blocks retransmitted by the guard time-out: a page-in took longer than guard-us, or its request was lost",
}
