package daemon

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/exanet/pfd/daemon/control"
)

// metricsConns is how many connections a listener for metrics accepts (package api).
const metricsConns = 16

// The listeners for metrics answer GET /metrics alone, with sums, and accept a bounded number of
// connections.
func TestMetricsListeners(t *testing.T) {
	d, client, _ := startEngine(t, func(c *Config) { c.MetricsListen = "127.0.0.1:0" })
	path := control.MetricsSocket(client.Socket())
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Fatalf("the socket: %v, %v", info, err)
	}
	for _, at := range []struct{ network, address string }{{"tcp", d.metricsTCP.Addr().String()}, {"unix", path}} {
		t.Run(at.network, func(t *testing.T) {
			c := http.Client{Timeout: patience, Transport: &http.Transport{
				DisableKeepAlives: true,
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, at.network, at.address)
				},
			}}
			ask := func(method, what string) (int, string) {
				t.Helper()
				r, err := http.NewRequestWithContext(t.Context(), method, "http://pfd"+what, nil)
				if err != nil {
					t.Fatal(err)
				}
				a, err := c.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				defer a.Body.Close()
				b, err := io.ReadAll(a.Body)
				if err != nil {
					t.Fatal(err)
				}
				return a.StatusCode, string(b)
			}
			if code, text := ask(http.MethodGet, "/metrics"); code != http.StatusOK || !strings.Contains(text, "exanet_faults_total") || strings.Contains(text, "uid") {
				t.Errorf("metrics: %d, %.200q", code, text)
			}
			for _, bad := range [][2]string{
				{http.MethodPost, "/metrics"}, {http.MethodGet, control.PathStatus}, {http.MethodGet, control.PathDomains},
				{http.MethodPost, control.PathKick + "?node=0&slot=0"}, {http.MethodPost, control.PathGrant + "?node=0&slot=0&pdid=1"},
				{http.MethodGet, control.PathMonitor}, {http.MethodGet, "/debug/pprof/"}, {http.MethodGet, "/metrics/../v1/status"},
			} {
				want := http.StatusNotFound
				if bad[1] == control.PathMetrics {
					want = http.StatusMethodNotAllowed
				}
				if code, text := ask(bad[0], bad[1]); code != want {
					t.Errorf("%s %s: %d, %.100q", bad[0], bad[1], code, text)
				}
			}
			// Connections that say nothing wait for each other and for nobody else.
			var idle []net.Conn
			for range 2 * metricsConns {
				n, err := net.Dial(at.network, at.address)
				if err != nil {
					t.Fatal(err)
				}
				idle = append(idle, n)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if _, err := client.Status(ctx); err != nil {
				t.Error(err)
			}
			for _, n := range idle {
				n.Close()
			}
			if code, _ := ask(http.MethodGet, "/metrics"); code != http.StatusOK {
				t.Errorf("after the silent ones: %d", code)
			}
			// Nor do those that have their answer, and stay.
			for range metricsConns {
				n, err := net.Dial(at.network, at.address)
				if err != nil {
					t.Fatal(err)
				}
				defer n.Close()
				if _, err := n.Write([]byte("GET /metrics HTTP/1.1\r\nHost: pfd\r\n\r\n")); err != nil {
					t.Fatal(err)
				}
				if _, err := n.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
			if code, _ := ask(http.MethodGet, "/metrics"); code != http.StatusOK {
				t.Errorf("beside connections that stay: %d", code)
			}
		})
	}
}

// Unused nodes share one set of metrics, and a used node has its own. A kind of page-in has one
// name.
func TestMetricsOfIdleNodes(t *testing.T) {
	const nodes = 64
	d, client, ctx := startEngine(t, func(c *Config) { c.Nodes = nodes })
	if _, err := client.Status(ctx); err != nil { // it serves
		t.Fatal(err)
	}
	look := func() (text string, series int) {
		t.Helper()
		text = metrics(t, d)
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "exanet_") {
				series++
			}
		}
		return text, series
	}
	text, before := look()
	for _, want := range []string{`exanet_faults_total{node="idle"} 0`, "exanet_nodes_idle 64", `exanet_domains{node="63"} 0`, `exanet_page_ins_total{kind="minor",node="idle"} 0`} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no line %q", want)
		}
	}
	if strings.Contains(text, "faults_minor") || strings.Contains(text, `exanet_faults_total{node="1"}`) {
		t.Error("a second name for page-ins, or a set for a node that is idle")
	}
	if before > 600 {
		t.Errorf("%d series of %d idle nodes", before, nodes)
	}
	selfWrite(t, client.Socket())
	text, after := look()
	if !strings.Contains(text, "exanet_nodes_idle 63\n") || !strings.Contains(text, `exanet_faults_total{node="0"}`) || after <= before {
		t.Errorf("%d series of %d idle nodes, %d with one that is used:\n%.600s", before, nodes, after, text)
	}
}
