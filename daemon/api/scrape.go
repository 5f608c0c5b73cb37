package api

import (
	"bytes"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

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
