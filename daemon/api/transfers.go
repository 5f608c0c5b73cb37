package api

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/tally"
)

// Outcomes name the statuses of transfers (spec/messages.md 1, reserved_1) in labels and in
// docs/troubleshooting.md.
var Outcomes = [device.Statuses]string{
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

// transfers adds a node's transfers. It omits outcomes that have not happened, except completed
// writes, so that a rate has a first sample.
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
				labels := []string{node, directions[dir], device.Class(class).String(), Outcomes[status]}
				named := []string{"node", labels[0], "direction", labels[1], "class", labels[2], "outcome", labels[3]}
				s.counter("transfers_total", which, t.Time.Count, named...)
				s.counter("transfer_bytes_total", "sizes of "+which, t.Bytes, named...)
				s.histogram(desc, &t.Time, labels...)
			}
		}
	}
}

// kindCounters are the counters that become one metric with the label kind.
var kindCounters = map[string]string{
	control.CounterMinor: "minor", control.CounterMajor: "major", control.CounterPermission: "permission",
}

// nodeCounter adds a counter of a node. A kind or a code in its name becomes a label.
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

// shadow adds the processes' memory that a node's device has mapped.
func (s *scrape) shadow(m session.Sharing, index int) {
	t, ok := m.Shadow(index)
	if !ok {
		return
	}
	node := strconv.Itoa(index)
	s.gauge("window_bytes", "bound of the memory that the device has mapped at one time, in bytes", float64(t.Window), "node", node)
	s.gauge("window_mapped_bytes", "bytes of memory that the device has mapped", float64(t.Mapped), "node", node)
	s.gauge("window_tables_bytes", "bytes of pfd's tables and queues that the device has mapped", float64(t.Tables), "node", node)
	s.gauge("window_pinned_bytes", "bytes of memory that mapping has pinned", float64(t.Pinned), "node", node)
	s.gauge("window_shared_bytes", "bytes of memory that processes share", float64(t.Shared), "node", node)
	s.counter("window_maps_total", "runs of pages mapped for the device", t.Maps, "node", node)
	s.counter("window_evictions_total", "places of at most 16 pages unmapped to make room, or because they were not used", t.Evictions, "node", node)
	s.counter("window_mismatches_total", "pages that the device was refused although they are in its tables", t.Mismatches, "node", node)
	if sent, awaited, ok := m.Messages(index); ok {
		s.counter("device_messages_total", "messages sent to the device since it came", sent, "node", node)
		s.counter("device_messages_awaited_total", "messages to the device whose answer was awaited", awaited, "node", node)
	}
}
