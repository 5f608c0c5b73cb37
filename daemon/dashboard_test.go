package daemon

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/exanet/pfd/internal/logs"
	"github.com/exanet/pfd/internal/spool"
)

var (
	metricName = regexp.MustCompile(`\b(?:exanet|process|go)_[a-z0-9_]+\b`)
	matcher    = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
	grouping   = regexp.MustCompile(`\bby\s*\(([^)]*)\)`)
	legend     = regexp.MustCompile(`\{\{\s*([a-z_]+)\s*\}\}`)
)

// series gives the labels, with their values, of every metric that a pfd with
// some faults of its own shows, by the name that an expression uses.
func series(t *testing.T) map[string]map[string]map[string]bool {
	t.Helper()
	file := spool.New(os.Stderr, 1)
	t.Cleanup(func() { file.Close(0) })
	d, client, _ := startEngine(t, func(c *Config) {
		c.LogLimit, c.LogFile = logs.New(file, logs.Options{}), file
		c.Record, c.Trace = filepath.Join(t.TempDir(), "r"), filepath.Join(t.TempDir(), "t")
	})
	selfWrite(t, client.Socket())
	text, err := d.metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil {
		t.Fatalf("the metrics do not parse: %v", err)
	}
	all := map[string]map[string]map[string]bool{}
	for name, f := range families {
		labels := map[string]map[string]bool{"instance": {}, "job": {}} // Prometheus' own
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if labels[l.GetName()] == nil {
					labels[l.GetName()] = map[string]bool{}
				}
				labels[l.GetName()][l.GetValue()] = true
			}
		}
		names := []string{name}
		if f.GetMetric()[0].GetHistogram() != nil {
			names = []string{name + "_bucket", name + "_sum", name + "_count"}
			labels["le"] = map[string]bool{}
		}
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", name)
		}
		for _, n := range names {
			all[n] = labels
		}
	}
	return all
}

// Every expression of the dashboard names metrics, labels and values that are
// there.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "contrib", "grafana", "pfd.json"))
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct {
				Name  string
				Type  string
				Query json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	known := series(t)
	check := func(where, expr, legends string) {
		names := metricName.FindAllString(expr, -1)
		if len(names) == 0 {
			t.Errorf("%s: %s names no metric", where, expr)
		}
		for _, name := range names {
			labels, ok := known[name]
			if !ok {
				t.Errorf("%s: pfd has no metric %s", where, name)
				continue
			}
			for _, m := range matcher.FindAllStringSubmatch(expr, -1) {
				values, ok := labels[m[1]]
				if !ok {
					t.Errorf("%s: %s has no label %s", where, name, m[1])
				}
				if !strings.HasPrefix(m[2], "$") && !values[m[2]] {
					t.Errorf("%s: no %s has %s=%q", where, name, m[1], m[2])
				}
			}
			var used []string
			for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
				used = append(used, strings.Split(strings.ReplaceAll(m[1], " ", ""), ",")...)
			}
			for _, m := range legend.FindAllStringSubmatch(legends, -1) {
				used = append(used, m[1])
				if strings.Contains(expr, " by ") && !regexp.MustCompile(`by\s*\([^)]*\b`+m[1]+`\b`).MatchString(expr) {
					t.Errorf("%s: %s is summed away in %s", where, m[1], expr)
				}
			}
			for _, l := range used {
				if _, ok := labels[l]; !ok {
					t.Errorf("%s: %s has no label %s", where, name, l)
				}
			}
		}
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			check(p.Title, target.Expr, target.LegendFormat)
		}
	}
	for _, v := range board.Templating.List {
		if v.Type == "query" {
			var q struct{ Query string }
			if err := json.Unmarshal(v.Query, &q); err != nil {
				t.Fatal(err)
			}
			check("variable "+v.Name, q.Query, "")
		}
	}
	if len(board.Panels) < 10 {
		t.Errorf("%d panels", len(board.Panels))
	}
}
