package daemon

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/internal/version"
	"github.com/exanet/pfd/proc"
)

// metricPrefix is before the names of all metrics but those of the process and
// of Go's runtime.
const metricPrefix = "exanet_"

// metrics answers /metrics in Prometheus' text format 0.0.4: every counter of
// every node, the stages of the faults, what is pinned, and pfd itself.
func (d *Daemon) metrics(ctx context.Context) ([]byte, error) {
	s := &scrape{}
	if err := d.scrape(ctx, s); err != nil {
		return nil, err
	}
	return gather(s, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// metricsFor gives all of that to who sees everything, and others their own
// counters.
func (d *Daemon) metricsFor(ctx context.Context, q *query) ([]byte, error) {
	if q.peer.all {
		return d.metrics(ctx)
	}
	own, err := d.numbers(ctx, q)
	if err != nil {
		return nil, err
	}
	s := &scrape{}
	for i := range own {
		node := strconv.Itoa(own[i].node)
		for _, c := range own[i].counters() {
			s.nodeCounter(node, &c)
		}
		if own[i].domains > 0 {
			s.gauge("domains", "protection domains in use", float64(own[i].domains), "node", node)
		}
	}
	s.gauge("sees_all", seesAllHelp, 0)
	s.gauge("build_info", "1, with the version", 1, "version", version.String())
	return gather(s)
}

const seesAllHelp = "1: these are of all processes; 0: of those of the user who asks, since they attached"

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

// scrape is what one request for the metrics found. It is a Collector of metrics
// that are not known before.
type scrape struct{ list []prometheus.Metric }

// Describe implements prometheus.Collector: nothing is promised.
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
		m = prometheus.NewInvalidMetric(desc, err) // Gather tells
	}
	s.list = append(s.list, m)
}

func (s *scrape) counter(name, help string, value uint64, labels ...string) {
	s.add(prometheus.CounterValue, name, help, float64(value), labels...)
}

func (s *scrape) gauge(name, help string, value float64, labels ...string) {
	s.add(prometheus.GaugeValue, name, help, value, labels...)
}

// histogram adds one; desc names its labels.
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

// stages adds a node's histograms; those without a fault are left out, but the
// totals.
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

// A node has some 250 series. Of a pfd with more than manyNodes those that nothing has used
// yet share one set, whose label is nodeIdle. Values below are defined by this project.
const (
	manyNodes = 8
	nodeIdle  = "idle"
)

// unused reports whether all counters of a node are 0.
func unused(list []control.Counter) bool {
	return !slices.ContainsFunc(list, func(c control.Counter) bool { return c.Value != 0 })
}

// scrape looks at everything once.
func (d *Daemon) scrape(ctx context.Context, s *scrape) error {
	var processes []*proc.Process
	idle := 0
	err := d.each(ctx, &query{node: control.AllNodes}, func(n *node) error {
		node := strconv.Itoa(n.index)
		list, err := n.counters()
		if err != nil {
			return err
		}
		live := n.domains.Domains()
		s.gauge("domains", "protection domains in use", float64(len(live)), "node", node)
		d.shadowMetrics(s, n.index)
		processes = append(processes, n.processes()...)
		if len(d.nodes) > manyNodes && len(live) == 0 && unused(list) {
			// All of its counters are 0, and so is the sum of all such nodes.
			if idle++; idle > 1 {
				return nil
			}
			node = nodeIdle
		}
		for _, c := range list {
			s.nodeCounter(node, &c)
		}
		if ended := d.features.Ended; ended != nil {
			s.transfers(node, ended(n.index))
		}
		t := n.faults.Stats().Total
		s.counter("fault_entries_total", "faults by the side of the transfer", t.Local, "node", node, "side", "local")
		s.counter("fault_entries_total", "faults by the side of the transfer", t.Remote, "node", node, "side", "remote")
		s.stages(node, &n.times)
		return nil
	})
	if err != nil {
		return err
	}
	s.gauge("pinned_bytes", "memory locked or pinned in pfd and in the attached processes, -1 unknown", float64(d.pinned(processes)))
	s.counter(control.CounterRefused, "attachments refused", d.refused.Load())
	s.counter(control.CounterDropped, "connections closed at once: their user has too many", d.dropped.Load())
	s.gauge("handshakes", "attachments begun and not finished", float64(d.handshakes.Total()))
	s.gauge("nodes", "nodes of this pfd", float64(len(d.nodes)))
	s.gauge("nodes_idle", "nodes that nothing has used yet, whose metrics have the label node=\""+nodeIdle+"\"", float64(idle))
	s.gauge("build_info", "1, with the version", 1, "version", version.String())
	if recording := d.features.Recording; recording != nil {
		value := 0.0
		if recording() {
			value = 1
		}
		s.gauge("recording", "1 while the machine's inputs are recorded, 0 when the file could not take them", value)
	}
	if t := d.trace; t != nil {
		s.counter("trace_lines_lost_total", "lines of --trace-registers that could not be written", t.spool.Stats().Lost)
	}
	if l := d.cfg.LogLimit; l != nil {
		s.counter("log_lines_held_back_total", "log lines that the limit held back", l.Suppressed())
	}
	if f := d.cfg.LogFile; f != nil {
		s.counter("log_lines_lost_total", "log lines that could not be written: disk full, or a reader that does not read", f.Stats().Lost)
	}
	return nil
}
