package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/logs"
	"github.com/exanet/pfd/internal/spool"
)

var (
	metricName = regexp.MustCompile(`\b(?:exanet|process|go)_[a-z0-9_]+\b`)
	matcher    = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
	grouping   = regexp.MustCompile(`\bby\s*\(([^)]*)\)`)
	legend     = regexp.MustCompile(`\{\{\s*([a-z_]+)\s*\}\}`)
)

// series returns the labels, with their values, of every metric of a pfd that has served some
// faults, by the name that an expression uses.
func series(t *testing.T) map[string]map[string]map[string]bool {
	t.Helper()
	file := spool.New(os.Stderr, 1)
	t.Cleanup(func() { file.Close(0) })
	d, client, ctx := startEngine(t, func(c *Config) {
		c.FirstPDID, c.LastPDID = 1, 0xff
		c.LogLimit, c.LogFile = logs.New(file, logs.Options{}), file
		c.Record, c.Trace = filepath.Join(t.TempDir(), "r"), filepath.Join(t.TempDir(), "t")
	})
	selfWrite(t, client.Socket())
	linkHost(ctx, t, client)
	text := metrics(t, d)
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(text))
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

// checkExpr reports names in an expression that do not exist.
func checkExpr(t *testing.T, known map[string]map[string]map[string]bool, where, expr, legends string) {
	t.Helper()
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

// board is contrib/grafana/pfd.json.
type board struct {
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

func readBoard(t *testing.T) (b board) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "contrib", "grafana", "pfd.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	if len(b.Panels) < 10 {
		t.Errorf("%d panels", len(b.Panels))
	}
	return b
}

// Every expression of the dashboard names metrics, labels and values that exist.
func TestDashboard(t *testing.T) {
	board, known := readBoard(t), series(t)
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			checkExpr(t, known, p.Title, target.Expr, target.LegendFormat)
		}
	}
	for _, v := range board.Templating.List {
		if v.Type == "query" {
			var q struct{ Query string }
			if err := json.Unmarshal(v.Query, &q); err != nil {
				t.Fatal(err)
			}
			checkExpr(t, known, "variable "+v.Name, q.Query, "")
		}
	}
}

// A Prometheus that scrapes a pfd has an answer to every expression of the dashboard, with
// Grafana's variables replaced as Grafana does.
func TestDashboardByPrometheus(t *testing.T) {
	needPrometheus(t, "prometheus")
	file := spool.New(os.Stderr, 1)
	t.Cleanup(func() { file.Close(0) })
	d, client, ctx := startEngine(t, func(c *Config) {
		c.LogLimit, c.LogFile = logs.New(file, logs.Options{}), file
		c.MetricsListen = "127.0.0.1:0"
		c.FirstPDID, c.LastPDID = 1, 0xff
	})
	linkHost(ctx, t, client)
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "scrape_configs: [{job_name: pfd, scrape_interval: 1s, static_configs: [{targets: [%q]}]}]", d.metricsTCP.Addr()), 0o644); err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	var log bytes.Buffer
	prometheus := exec.Command("prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	prometheus.Stdout, prometheus.Stderr = &log, &log
	if err := prometheus.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(prometheus.Process.Signal(unix.SIGTERM), prometheus.Wait()); err != nil {
			t.Errorf("prometheus: %v", err)
		}
		if t.Failed() {
			t.Log(log.String())
		}
	})
	variables := strings.NewReplacer("$instance", ".*", "$node", ".*", "$__rate_interval", "5m", " > 0", "") // of a link that never came up
	var left []string
	for _, p := range readBoard(t).Panels {
		for _, target := range p.Targets {
			left = append(left, variables.Replace(target.Expr))
		}
	}
	// A rate wants two scrapes, a quantile transfers between them.
	for deadline := time.Now().Add(4 * patience); len(left) > 0; time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no data for\n%s", strings.Join(left, "\n"))
		}
		selfWrite(t, client.Socket())
		left = slices.DeleteFunc(left, func(expr string) bool { return answered(t, address, expr) })
	}
}

// answered reports whether Prometheus has a sample that is a number.
func answered(t *testing.T, address, expr string) bool {
	t.Helper()
	a, err := http.Get("http://" + address + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return false // it does not listen yet
	}
	defer a.Body.Close()
	var is struct {
		Error string
		Data  struct{ Result model.Vector }
	}
	if err := json.NewDecoder(a.Body).Decode(&is); err != nil || is.Error != "" {
		if a.StatusCode == http.StatusServiceUnavailable {
			return false // it listens and is not ready
		}
		t.Fatalf("%s: %v %s", expr, err, is.Error)
	}
	return slices.ContainsFunc(is.Data.Result, func(s *model.Sample) bool { return !math.IsNaN(float64(s.Value)) })
}
