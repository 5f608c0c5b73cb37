package api

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/tally"
)

// metricPrefix begins the names of all metrics except those of the process and of Go's runtime.
const metricPrefix = "exanet_"

// scrape collects the metrics for one request. It implements prometheus.Collector.
type scrape struct{ list []prometheus.Metric }

// Describe implements prometheus.Collector. It sends nothing: the metrics are not known before.
func (s *scrape) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *scrape) Collect(ch chan<- prometheus.Metric) {
	for _, m := range s.list {
		ch <- m
	}
}

func (s *scrape) add(kind prometheus.ValueType, name, help string, value float64, labels ...string) {
	var names, values []string
	for i := 0; i+1 < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	desc := prometheus.NewDesc(metricPrefix+name, help, names, nil)
	m, err := prometheus.NewConstMetric(desc, kind, value, values...)
	if err != nil {
		m = prometheus.NewInvalidMetric(desc, err) // Gather reports it
	}
	s.list = append(s.list, m)
}

func (s *scrape) counter(name, help string, value uint64, labels ...string) {
	s.add(prometheus.CounterValue, name, help, float64(value), labels...)
}

func (s *scrape) gauge(name, help string, value float64, labels ...string) {
	s.add(prometheus.GaugeValue, name, help, value, labels...)
}

// histogram adds a histogram; desc names its labels.
func (s *scrape) histogram(desc *prometheus.Desc, h *tally.Histogram, labels ...string) {
	cumulative, below := map[float64]uint64{}, uint64(0)
	for i, b := range tally.Bounds {
		below += h.In[i]
		cumulative[float64(b)/1e9] = below
	}
	m, err := prometheus.NewConstHistogram(desc, h.Count, float64(h.Sum)/1e9, cumulative, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(desc, err)
	}
	s.list = append(s.list, m)
}

func gather(list ...prometheus.Collector) ([]byte, error) {
	reg := prometheus.NewRegistry()
	for _, c := range list {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	families, err := reg.Gather()
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	var b bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return b.Bytes(), nil
}

// stage is a part of the handling of a fault.
type stage int

// The stages end when the entry is read, when the page-in begins, when it ends, and when the RAPF
// or the question to the process is sent; the first begins with the interrupt.
const (
	stageDrain stage = iota
	stageQueue
	stagePageIn
	stageAnswer
	stageTotal
	stages
)

var stageNames = [stages]string{"drain", "queue", "page_in", "answer", "total"}

// sideNames name the end of the transfer that faulted.
var sideNames = [2]string{"local", "remote"}

// kindNames name gup.Kind, and none if nothing was paged in.
var kindNames = [kinds]string{"none", gup.Minor.String(), gup.Major.String(), gup.Permission.String()}

const kinds = 4

// stageTimes are the histograms of one node. They belong to the owning goroutine.
type stageTimes struct {
	of [stages][2][kinds]tally.Histogram
}

// observe adds the stages that a fault has reached.
func (t *stageTimes) observe(rec *fault.Record) {
	side, kind := 0, 0
	if rec.Write {
		side = 1
	}
	if rec.Resident != 0 {
		switch rec.Kind {
		case gup.Minor:
			kind = 1
		case gup.Major:
			kind = 2
		case gup.Permission:
			kind = 3
		}
	}
	for st, took := range stagesOf(rec) {
		if took >= 0 {
			t.of[st][side][kind].Observe(took)
		}
	}
}

// stagesOf returns how long each stage of a fault took; -1: it was not reached.
func stagesOf(rec *fault.Record) (took [stages]int64) {
	start, last := rec.Began(), max(rec.Drained, rec.Resident)
	for st, b := range [stages]struct{ from, to int64 }{
		stageDrain:  {start, rec.Drained},
		stageQueue:  {rec.Drained, rec.Started},
		stagePageIn: {rec.Started, rec.Resident},
		stageAnswer: {last, rec.Answered},
		stageTotal:  {start, max(last, rec.Answered)},
	} {
		if took[st] = -1; b.from != 0 && b.to >= b.from {
			took[st] = b.to - b.from
		}
	}
	return took
}

// stages adds a node's histograms, without the empty ones, except totals.
func (s *scrape) stages(node string, t *stageTimes) {
	desc := prometheus.NewDesc(metricPrefix+"fault_stage_seconds",
		"time of each stage of the faults: drain, queue, page_in, answer, and their total",
		[]string{"node", "stage", "side", "kind"}, nil)
	for st := range t.of {
		for side := range t.of[st] {
			for kind := range t.of[st][side] {
				h := &t.of[st][side][kind]
				if h.Count == 0 && (stage(st) != stageTotal || kind == 0) {
					continue
				}
				s.histogram(desc, h, node, stageNames[st], sideNames[side], kindNames[kind])
			}
		}
	}
}

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
func (s *scrape) shadow(m session.Sharing, index int, node string) {
	t, ok := m.Shadow(index)
	if !ok {
		return
	}
	s.gauge("window_bytes", "bound of the memory that the device has mapped at one time, in bytes", float64(t.Window), "node", node)
	s.gauge("window_mapped_bytes", "bytes of memory that the device has mapped", float64(t.Mapped), "node", node)
	s.gauge("window_tables_bytes", "bytes of pfd's tables and queues that the device has mapped", float64(t.Tables), "node", node)
	s.gauge("window_pinned_bytes", "bytes of memory that mapping has pinned", float64(t.Pinned), "node", node)
	s.gauge("window_shared_bytes", "bytes of memory that processes share", float64(t.Shared), "node", node)
	s.counter("window_maps_total", "runs of pages mapped for the device", t.Maps, "node", node)
	s.counter("window_evictions_total", "places of at most 16 pages unmapped to make room, or because they were not used", t.Evictions, "node", node)
	s.counter("window_mismatches_total", "pages that the device was refused although they are in its tables", t.Remaps, "node", node)
	if sent, awaited, ok := m.Messages(index); ok {
		s.counter("device_messages_total", "messages sent to the device since it came", sent, "node", node)
		s.counter("device_messages_awaited_total", "messages to the device whose answer was awaited", awaited, "node", node)
	}
}
