package daemon

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/exanet/pfd/daemon/api"
)

var alertsFile = filepath.Join("..", "contrib", "prometheus", "pfd.rules.yml")

var annotated = regexp.MustCompile(`\$labels\.([a-z_]+)`)

// Every alert names metrics, labels and values that exist, and is explained.
func TestAlerts(t *testing.T) {
	text, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil {
		t.Fatal(err)
	}
	known := series(t)
	// A device behind the kernel's VFIO has it.
	known["exanet_window_pinned_bytes"] = map[string]map[string]bool{"instance": {}, "node": {}}
	for _, o := range api.Outcomes {
		known["exanet_transfers_total"]["outcome"][o] = true
	}
	known["exanet_fault_stage_seconds_bucket"]["kind"]["minor"] = true
	n := 0
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			n++
			// Alternatives are values each.
			expr := matcher.ReplaceAllStringFunc(r.Expr, func(m string) string {
				name, values, _ := strings.Cut(m, `"`)
				var all []string
				for v := range strings.SplitSeq(strings.TrimSuffix(values, `"`), "|") {
					all = append(all, name+`"`+v+`"`)
				}
				return strings.Join(all, ",")
			})
			checkOneByOne(t, known, r.Alert, expr)
			if r.For == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s: want for, severity, summary and description: %+v", r.Alert, r)
			}
			for _, m := range annotated.FindAllStringSubmatch(r.Annotations["summary"], -1) {
				if by := grouping.FindStringSubmatch(r.Expr); by != nil && !strings.Contains(by[1], m[1]) {
					t.Errorf("%s: label %s of its summary is summed away", r.Alert, m[1])
				}
			}
		}
	}
	if n < 8 {
		t.Errorf("%d alerts", n)
	}
}

// checkOneByOne checks each metric of an expression with its own matchers.
func checkOneByOne(t *testing.T, known map[string]map[string]map[string]bool, where, expr string) {
	t.Helper()
	places := metricName.FindAllStringIndex(expr, -1)
	if len(places) == 0 {
		t.Errorf("%s: %s names no metric", where, expr)
	}
	for _, at := range places {
		part := expr[at[0]:at[1]]
		if rest := expr[at[1]:]; strings.HasPrefix(rest, "{") {
			part += rest[:strings.Index(rest, "}")+1]
		}
		checkExpr(t, known, where, part, "")
	}
}

// Prometheus accepts the rules, and they raise the alerts that they should and no others.
func TestAlertsByPromtool(t *testing.T) {
	needPrometheus(t, "promtool")
	for _, args := range [][]string{{"check", "rules", alertsFile}, {"test", "rules", filepath.Join("testdata", "alerts.yml")}} {
		if out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

func needPrometheus(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		why := "no " + program + ": install it (Debian's package prometheus; `sh contrib/scripts/setup.sh test` does where CI is set)"
		if os.Getenv("STRICT") == "1" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
}
