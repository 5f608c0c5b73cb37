package daemon

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/tally"
)

// outcomes are the statuses of transfers as label values (spec/messages.md 1,
// reserved_1): a word each for the rows of docs/troubleshooting.md.
var outcomes = [device.Statuses]string{
	device.StatusNone:       "completed",
	device.StatusSlaveError: "slave_error",
	device.StatusDecode:     "bad_address",
	device.StatusNoContext:  "no_context",
	device.StatusCorrupt:    "corrupt",
	device.StatusDomain:     "not_admitted",
	device.StatusReserved:   "reserved",
	device.StatusBufferFull: "buffer_full",
	device.StatusLimit:      "retransmission_limit",
	device.StatusAborted:    "aborted",
	device.StatusGone:       "gone",
	device.StatusMemory:     "no_memory",
}

var directions = [tally.Directions]string{tally.Write: "write", tally.Read: "read"}

// transfers adds a node's transfers. Ways of ending that none has taken are left out,
// but for writes that are completed: a rate has something to begin with.
func (s *scrape) transfers(node string, ended *tally.Node) {
	const which = "transfers that have ended: writes of the node's processes and reads that it served, by priority class and by outcome (docs/troubleshooting.md)"
	desc := prometheus.NewDesc(metricPrefix+"transfer_seconds", "time from the doorbell to the final status of "+which,
		[]string{"node", "direction", "class", "outcome"}, nil)
	for dir := range ended.Ways {
		for class := range ended.Ways[dir] {
			for status := range ended.Ways[dir][class] {
				t := &ended.Ways[dir][class][status]
				if t.Time.Count == 0 && (dir != int(tally.Write) || status != device.StatusNone) {
					continue
				}
				labels := []string{node, directions[dir], device.Class(class).String(), outcomes[status]}
				named := []string{"node", labels[0], "direction", labels[1], "class", labels[2], "outcome", labels[3]}
				s.counter("transfers_total", which, t.Time.Count, named...)
				s.counter("transfer_bytes_total", "sizes of "+which, t.Bytes, named...)
				s.histogram(desc, &t.Time, labels...)
			}
		}
	}
}

// kindCounters are the counters that are one metric with a label here.
var kindCounters = map[string]string{
	control.CounterMinor: "minor", control.CounterMajor: "major", control.CounterPermission: "permission",
}

// nodeCounter adds a counter of a node. What has a kind or a number in its name has a label here.
func (s *scrape) nodeCounter(node string, c *control.Counter) {
	if kind, ok := kindCounters[c.Name]; ok {
		s.counter("page_ins_total", "page-ins by kind of fault", c.Value, "node", node, "kind", kind)
		return
	}
	if code, ok := strings.CutPrefix(strings.TrimSuffix(c.Name, "_total"), "nacks_"); ok {
		s.counter("nacks_total", "blocks that their target refused, by the code of the NACK (docs/troubleshooting.md, as the statuses 1 to 7)", c.Value, "node", node, "code", code)
		return
	}
	s.counter(c.Name, c.Help, c.Value, "node", node)
}

// counterHelp says what the hardware's counters count (spec/hardware.md 3, COUNTER;
// the names are the specification's, what they count is ours).
var counterHelp = [device.Counters]string{
	device.TXPackets:      "packets sent: of data, acknowledgements and messages",
	device.RXPackets:      "packets received: of data, acknowledgements and messages",
	device.TXBlocks:       "blocks sent for the first time (up to 16 KiB each); retransmits has the others",
	device.RXBlocks:       "blocks whose data has been written to memory",
	device.Acks:           "blocks sent that their target has acknowledged",
	device.Nacks0:         "not used: a code 0 is an acknowledgement",
	device.Nacks1:         "blocks refused with code 1: a page of the destination was absent; they are sent again once pfd asks",
	device.Nacks2:         "blocks refused with code 2: an address is not mapped or not permitted; their transfers fail",
	device.Nacks3:         "blocks refused with code 3: the target had no receive context free; they are sent again later",
	device.Nacks4:         "blocks refused with code 4: packets arrived corrupted; they are sent again later",
	device.Nacks5:         "blocks refused with code 5: the target does not admit this domain; their transfers fail",
	device.Nacks6:         "blocks refused with code 6, which is reserved; their transfers fail",
	device.Nacks7:         "blocks refused with code 7: the target's buffer was full; they are sent again later",
	device.Timeouts:       "blocks neither acknowledged nor refused within timeout-us, and sent again: lost packets, or a target that is slow",
	device.Retransmits:    "blocks sent again, for whatever reason",
	device.RAPFRx:         "requests received to send a block again (RAPF)",
	device.RAPFStale:      "of these, for a block that was over or had been sent again already: harmless",
	device.RAPFDenied:     "of these, refused: their sender has no part in the block",
	device.FIFOPush:       "page faults entered into the fault FIFOs",
	device.FIFODedup:      "page faults that the newest entry of their FIFO already told",
	device.FIFOOverflows:  "page faults lost because their FIFO was full: the guard time-out sends the block again",
	device.TLBL1Hit:       "translations found in the first-level TLB",
	device.TLBL2Hit:       "translations found in the second-level TLB",
	device.Walks:          "translations found in no TLB: page tables were walked",
	device.FaultTF:        "translation faults: the page was absent",
	device.FaultPF:        "permission faults: the page may not be written",
	device.BadAccess:      "accesses to registers that are not there, or of a wrong width",
	device.MsgDropped:     "messages dropped: malformed, or nobody waits for them",
	device.AckStale:       "acknowledgements of blocks that were over or had been sent again: harmless",
	device.PktStale:       "packets dropped: of a block that was over, or that no transfer announced",
	device.CRCHeader:      "packets dropped for the checksum of their header",
	device.CRCPayload:     "packets whose data failed its checksum; their blocks are refused with code 4",
	device.MboxRefused:    "messages refused: the sender may not write to that mailbox, or it is full or off",
	device.DoorbellDenied: "transfers refused at their doorbell: a bad descriptor, a domain that is off, or a read that the target does not admit",
	device.Guards:         "paused blocks sent again by the guard time-out: a page-in took longer than guard-us, or its request was lost",
}
