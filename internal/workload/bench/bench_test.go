package bench

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/workload"
)

// processEnv makes the test program a test process of package workload.
const processEnv = "PFD_BENCH_PROCESS"

func TestMain(m *testing.M) {
	if os.Getenv(processEnv) != "" {
		if err := workload.Process(context.Background(), os.Stdin, os.Stdout); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// tables lists the tables of each suite with their numbers of rows and columns.
var tables = map[string][2]int{
	"first": {6, 4}, "where": {4, 4}, "policies": {5, 5}, "timeouts": {5, 3}, "source": {3, 2}, "prefetch": {4, 3}, "folios": {2, 3}, "isolated": {3, 5}, "methods": {6, 2}, "latency": {10, 6},
	"frequency": {7, 3}, "overheads": {10, 6}, "breakdown": {8, 4}, "driver": {5, 6}, "strategies": {10, 4}, "costs": {10, 7},
	"memory": {10, 6}, "memory-swap": {2, 7}, "channels": {6, 4}, "domains": {6, 2}, "beside": {2, 2}, "nodes": {6, 2}, "pfds": {3, 2}, "idle": {1, 3},
	"outstanding": {3, 2}, "firmware": {7, 3}, "register": {2, 1}, "device": {3, 2}, "messages": {5, 1},
	"gsas-rates": {4, 1},
	"peers":      {6, 4}, "userfaultfd": {3, 2}, "servers": {3, 2},
	"simulated-latency": {10, 1}, "simulated-first": {3, 3}, "simulated-policies": {5, 5}, "simulated-frequency": {7, 3},
	"simulated-timeouts": {5, 3}, "simulated-source": {3, 2},
}

// With a bpffs the breakdown includes the stages that the probe measured, for each method.
func TestBreakdownByProbe(t *testing.T) {
	fs := t.TempDir()
	if err := unix.Mount("bpf", fs, "bpf", 0, ""); err != nil {
		t.Skipf("mounting a bpffs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(fs, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	l := newLab(t)
	l.BPFFS = filepath.Join(fs, "breakdown")
	suites, err := Choose([]string{"breakdown"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Run(t.Context(), suites)
	if err != nil {
		t.Fatal(err)
	}
	stages := r.Table("breakdown-probe")
	for _, m := range methodNames {
		if stages == nil || stages.Median("total", m) <= 0 || m != "touch" && stages.Median("page_in", m) <= 0 {
			t.Fatalf("%s: no stages by the probe: %+v", m, r.Suites)
		}
	}
}

// TestRun runs every suite. Each figure exists, the bytes of all transfers were checked, and
// the written files can be read.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("all suites take a while: not with -short")
	}
	l := newLab(t)
	suites, err := Choose([]string{"all"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Run(t.Context(), suites)
	if err != nil {
		t.Fatal(err)
	}
	if r.PinnedBytes != 0 || len(r.Suites) != len(suites) {
		t.Errorf("%d bytes pinned, %d suites of %d", r.PinnedBytes, len(r.Suites), len(suites))
	}
	skipped := map[string]bool{}
	for _, s := range r.Suites {
		for _, m := range s.Missing {
			t.Logf("skipped: %s", m)
			if program, _, _ := strings.Cut(m, ":"); !slices.Contains([]string{"ucx_perftest", "fi_pingpong", "stress-ng", "gpio-pci-idio-16", "redis-server", "memcached", "mpicc"}, program) {
				t.Errorf("%s: not measured: %s", s.Name, m)
			}
		}
		if s.Skipped != "" {
			t.Logf("skipped: %s: %s", s.Name, s.Skipped)
			skipped[s.Name] = true
		}
	}
	// The OOM killer may end a target of any strategy if reclaim is too slow.
	if puts := r.Table("memory-puts"); !skipped["memory"] && puts.Median(workload.Strategies[0].Name, "a put") <= 0 {
		if notes := r.Table("memory").Notes; !slices.Contains(notes, workload.Strategies[0].Name+": "+errKilled.Error()+".") {
			t.Errorf("no puts without pinning beyond memory, and no reason: %q", notes)
		}
		t.Log("skipped: puts beyond memory: ", errKilled)
	}
	if !skipped["tracing"] {
		t.Error("tracing is measured without a bpffs")
	}
	for name, want := range tables {
		table := r.Table(name)
		if table == nil {
			if !skipped["memory"] || !strings.HasPrefix(name, "memory") {
				t.Errorf("no table %s", name)
			}
			continue
		}
		if skipped[table.Suite] {
			continue
		}
		if got := [2]int{len(table.Rows), len(table.Columns)}; got != want && name != "folios" { // TestFolios
			t.Errorf("%s has %d rows and columns, want %d: %v, %v", name, got, want, table.Rows, table.Columns)
		}
		both := []string{"first", "folios", "methods", "where", "policies", "isolated", "frequency", "domains", "beside"}
		if table.split() != slices.Contains(both, name) {
			t.Errorf("%s is of memory %q", name, table.kinds())
		}
		if text := table.Markdown() + table.Text(); strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("not all are figures:\n%s", text)
		}
	}
	readAll(t, r)
}

// TestMemory measures both kinds of memory if both exist: under method uffd no memory is
// shared, and a device in another process accesses only shared memory.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("some suites take a while: not with -short")
	}
	l := newLab(t)
	l.Memory = workload.Memories
	suites, err := Choose([]string{"latency", "breakdown", "device"})
	if err != nil {
		t.Fatal(err)
	}
	study, err := Study{
		Methods: []string{"gup", "uffd"}, Policies: []string{"p1"}, Sizes: []uint64{smallSize}, Patterns: workload.Patterns[:1],
		Probabilities: []float64{0, 1}, Delays: []time.Duration{0}, Losses: []float64{0},
	}.Suite()
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Run(t.Context(), append(suites, study))
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range r.Tables {
		if text := table.Markdown() + table.Text(); strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("not all are figures:\n%s", text)
		}
		for at, c := range table.cells {
			if len(c.Samples) == 0 && (c.any == nil || len(c.any.Samples) == 0) {
				continue
			}
			got := [2]bool{c.memory == workload.Shared && len(c.Samples) > 0, c.any != nil}
			want := [2]bool{true, true}
			switch {
			case slices.Contains([]string{"register", "messages"}, table.Name):
				want = [2]bool{}
			case strings.HasPrefix(at[1], "uffd"):
				want[0] = false
			case strings.HasPrefix(at[0], "vfio-user"):
				want[1] = false
			}
			if got != want {
				t.Errorf("%s, %q: shared and any memory are measured: %v, want %v", table.Name, at, got, want)
			}
		}
	}
	readAll(t, r)
}

// readAll reads the files that Save writes.
func readAll(t *testing.T, r *Report) {
	dir := t.TempDir()
	if err := r.Save(dir); err != nil {
		t.Fatal(err)
	}
	open := func(name string) *os.File {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	lines := json.NewDecoder(open("results.jsonl"))
	var head Report
	if err := lines.Decode(&head); err != nil || head.Machine.Processors < 1 || len(head.Suites) != len(r.Suites) {
		t.Errorf("the first line: %v, %+v", err, head)
	}
	cells := 0
	for ; lines.More(); cells++ {
		var c jsonCell
		if err := lines.Decode(&c); err != nil {
			t.Fatal(err)
		}
		if c.N != len(c.Samples) || c.N < 1 || c.Median < slices.Min(c.Samples) || c.Low > c.Median || c.High < c.Median || c.P99 > slices.Max(c.Samples) {
			t.Errorf("%+v", c)
		}
	}
	rows, err := csv.NewReader(open("results.csv")).ReadAll()
	if err != nil || len(rows) != 1+cells || cells == 0 {
		t.Errorf("%d lines of CSV for %d cells, %v", len(rows), cells, err)
	}
	page, err := io.ReadAll(open("report.html"))
	if err != nil {
		t.Fatal(err)
	}
	// The page loads nothing: its only address is the namespace of SVG.
	text := strings.ReplaceAll(string(page), "http://www.w3.org/2000/svg", "")
	if m := regexp.MustCompile(`(?i)https?:|src=|href=|@import|url\(|<script`).FindString(text); m != "" {
		t.Errorf("report.html reaches out of itself: %q", m)
	}
	for _, table := range r.Tables {
		if !strings.Contains(text, "<h2>") || table.SVG() == "" {
			continue
		}
		d := xml.NewDecoder(open(table.Name + ".svg"))
		d.Strict = true
		for {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Errorf("%s.svg: %v", table.Name, err)
				break
			}
		}
	}
}

func TestChoose(t *testing.T) {
	if _, err := Choose([]string{"faults", "nothing"}); !errors.Is(err, ErrSuite) || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("error %v, want one that names the suite", err)
	}
	list, err := Choose([]string{"scale", "faults"})
	if err != nil || len(list) != 2 || list[0].Name != "scale" {
		t.Errorf("%v, %v", list, err)
	}
	l := Lab{PFD: "/nonexistent", Count: 1, Window: time.Millisecond}
	if _, err := l.Run(t.Context(), list); err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("error %v, want one that names the program", err)
	}
}

// The interval of the median is between ranks: about the 41st to the 60th of 100 values.
func TestSummarize(t *testing.T) {
	var v []float64
	for i := range 100 {
		v = append(v, float64((i*37)%100+1))
	}
	if s := summarize(v); s != (Summary{100, 50, 41, 61, s.Mean, 99}) || math.Abs(s.Mean-50.5) > 1e-9 {
		t.Errorf("%+v", s)
	}
	if s := summarize([]float64{7}); s != (Summary{1, 7, 7, 7, 7, 7}) {
		t.Errorf("%+v", s)
	}
	if s := summarize(nil); s != (Summary{}) {
		t.Errorf("%+v", s)
	}
}

func TestTable(t *testing.T) {
	table := &Table{Title: "T", Unit: "us", RowName: "r", Base: "b"}
	table.cell("x", "a").Samples = []float64{10, 20, 30}
	table.cell("x", "b").Samples = []float64{5}
	table.cell("y", "a")
	want := "\n### T\n\n| r | a | b |\n| --- | --- | --- |\n| x | 20 us (4.00) | 5 us |\n| y |  |  |\n"
	if got := table.Markdown(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	table.Base, table.Paired = "x", true
	table.cell("y", "a").Samples = []float64{11, 22, 33}
	if got := table.text("y", "a", table.get("y", "a", "")); got != "22 us (+10.0 %, +10.0 to +10.0)" {
		t.Errorf("paired: %q", got)
	}

	// A cell is compared with a cell of the same kind of memory, if there is one.
	table = &Table{Suite: "s", Name: "t", Title: "T", Unit: "us", RowName: "r", Base: "x"}
	table.cell("x", "a").of(workload.Any).Samples = []float64{4}
	if want := "\n### T; memory that is not shared\n\n| r | a |\n| --- | --- |\n| x | 4 us |\n"; table.Markdown() != want {
		t.Errorf("%q, want %q", table.Markdown(), want)
	}
	table.cell("x", "a").of(workload.Shared).Samples = []float64{2}
	table.cell("y", "a").of(workload.Any).Samples = []float64{6}
	table.cell("y", "b").of(workload.Shared).Samples = []float64{7}
	table.cell("z", "a").Samples = []float64{8}
	table.cell("none", "b")
	want = "\n### T\n\n| r | memory | a | b |\n| --- | --- | --- | --- |\n| x | shared | 2 us |  |\n| x | any | 4 us |  |\n" +
		"| y | shared |  | 7 us |\n| y | any | 6 us (1.50) |  |\n| z |  | 8 us (4.00) |  |\n| none |  |  |  |\n"
	if got := table.Markdown(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if x, y := table.Median("x", "a"), table.Median("y", "a"); x != 2 || y != 6 || table.median("x", "a", workload.Any) != 4 {
		t.Errorf("medians %v and %v", x, y)
	}
	var csv strings.Builder
	if err := (&Report{Tables: []*Table{table}}).CSV(&csv); err != nil || !strings.Contains(csv.String(), "\ns,t,x,a,us,1,4,4,4,4,4,any\ns,t,y,a,us,1,6,6,6,6,6,any\n") {
		t.Errorf("%v:\n%s", err, &csv)
	}
	if svg := table.SVG(); !strings.Contains(svg, ">a, shared<") || !strings.Contains(svg, ">a, any<") {
		t.Errorf("no legend of both:\n%s", svg)
	}
}

// A picture names its units, colours and intervals, and has separate axes for each unit.
func TestPicture(t *testing.T) {
	draw := func(unit string, rows, columns []string) string {
		table := &Table{Title: "T of `x`", Unit: unit, RowName: "the rows", Rows: rows}
		for i, row := range rows {
			for j, column := range columns {
				v := float64(1 + i*10 + j)
				table.cell(row, column).Samples = []float64{v - 0.5, v, v + 0.5}
			}
		}
		return table.SVG()
	}
	ten := strings.Fields("a b c d e f g h i j")
	holes := &Table{Title: "T", Unit: "us", RowName: "software"}
	holes.cell("ours", "present").Samples = []float64{1}
	holes.cell("ours", "absent").Samples = []float64{1000}
	holes.cell("another's", "present").Samples = []float64{50}
	means := &Table{Title: "T", Unit: "faults", Means: true}
	means.cell("x", "a").Samples = []float64{1, 2}
	means.cell("y", "a").Samples = []float64{3, 4}
	for name, c := range map[string]struct {
		svg  string
		want []string
	}{
		"holes":          {holes.SVG(), []string{">median, us, logarithmic:<", ">bars do not begin at 0<", ">not measured<"}},
		"means":          {means.SVG(), []string{">mean, faults<"}},
		"lines":          {draw("us", []string{"1", "2", "3"}, ten), []string{">median, us, logarithmic<", ">the rows<", ">95 % interval<", ">j<", "stroke-dasharray:6,2", ">T of x<"}},
		"bars":           {draw("MiB", []string{"x", "y"}, ten), []string{">median, MiB", ">95 % interval<", ">a<", "fill-opacity:0.45"}},
		"long names":     {draw("us", []string{"a rather long name of a row", "another name of a row", "short"}, ten), []string{`"rotate(-30`, ">a rather long name of a row<"}},
		"several units":  {draw("", []string{"1", "2", "3"}, []string{"p: interrupts", "p: us of pfd's processor"}), []string{">median, interrupts", ">median, us of pfd&#39;s processor", ">p<"}},
		"nobody says it": {draw("", []string{"1", "2", "3"}, ten), nil},
	} {
		if (c.svg == "") != (c.want == nil) {
			t.Errorf("%s: %q", name, c.svg)
		}
		for _, want := range c.want {
			if !strings.Contains(c.svg, want) {
				t.Errorf("%s has no %s:\n%s", name, want, c.svg)
			}
		}
	}
}

// A cell that was not measured is a cross, which the legend explains.
func TestCrosses(t *testing.T) {
	table := &Table{Title: "T", Unit: "us", RowName: "software"}
	table.cell("ours", "present").Samples = []float64{1}
	table.cell("ours", "absent").Samples = []float64{2}
	table.cell("another's", "present").Samples = []float64{3}
	diagonals := 0
	for _, m := range regexp.MustCompile(`d="M([^,"]+),([^L"]+)L([^,"]+),([^"LZ]+)"`).FindAllStringSubmatch(table.SVG(), -1) {
		if m[1] != m[3] && m[2] != m[4] {
			diagonals++
		}
	}
	if diagonals != 2*2 {
		t.Errorf("%d diagonal lines, want two crosses:\n%s", diagonals, table.SVG())
	}
}

// No sample and no name of a row makes a picture panic or results in a coordinate NaN.
func TestPictureOfAnySamples(t *testing.T) {
	values := []float64{0, 1, -1, 7, math.SmallestNonzeroFloat64, 1e-30, 1e-9, 1e12, 1e18, 1e19, -1e18, math.MaxFloat64, math.Inf(1), math.Inf(-1), math.NaN()}
	drawn := 0
	for _, rows := range [][]string{{"1", "2", "3"}, {"0", "0", "0 B"}, {"-1", "1e-300", "1e300"}, {"NaN", "Inf", "1"}, {"1 KiB", "1024", "1 MiB"}, {"", "<&>", "ä…"}} {
		for _, x := range values {
			for _, y := range values {
				table := &Table{Title: "T", Unit: "us", RowName: "r"}
				for i, row := range rows {
					table.cell(row, "a").Samples = []float64{x, y}[i%2 : 2]
					table.cell(row, "b").Samples = []float64{y}
				}
				svg := table.SVG()
				if svg != "" {
					drawn++
				}
				if err := xml.Unmarshal([]byte("<x>"+svg+"</x>"), new(struct{})); err != nil || regexp.MustCompile(`[",L]-?(NaN|[+]?Inf)`).MatchString(svg) {
					t.Errorf("rows %q, samples %v and %v: %v:\n%s", rows, x, y, err, svg)
				}
			}
		}
	}
	if drawn < 100 {
		t.Errorf("%d pictures", drawn)
	}
}

// The title of a report is its command, and it names each disturbance once.
func TestReportPage(t *testing.T) {
	for suite, title := range map[string]string{studySuite: "exanetctl study", "faults": "exanetctl bench"} {
		var page strings.Builder
		r := Report{Suites: []SuiteReport{{Name: suite, Distorted: "others' load"}}}
		if err := r.HTML(&page); err != nil {
			t.Fatal(err)
		}
		if s := page.String(); strings.Count(s, "<title>"+title+"</title>") != 1 || strings.Count(s, "<h1>"+title+"</h1>") != 1 || strings.Count(s, "distorted") != 1 || strings.Contains(s, "pre-line") {
			t.Errorf("%s:\n%s", suite, s)
		}
		if strings.Count(r.Head(), "distorted") != 1 {
			t.Errorf("%s", r.Head())
		}
	}
}

// Every figure of the papers names a cell that a suite measures.
func TestPoints(t *testing.T) {
	r := &Report{}
	for name := range tables {
		r.Tables = append(r.Tables, &Table{Name: name})
	}
	for _, p := range points() {
		if _, ok := p.ours(r, side{memory: workload.Shared}); ok {
			t.Errorf("%s: a figure of nothing", p.what)
		}
		if p.source == "" || p.what == "" {
			t.Errorf("%+v", p)
		}
	}
	if text := r.Evaluation(); !strings.Contains(text, "| 002 fig. 9 | 4 KiB, minor fault at the destination | 38 us | not measured |  |  |") {
		t.Errorf("the papers' figures:\n%s", text)
	}
}

func TestCanary(t *testing.T) {
	c := &canary{start: time.Now().Add(-time.Second), others: 0.5, ticks: ticks{}, waited: -1e12}
	text, err := c.verdict(t.Context())
	if err != nil || !strings.Contains(text, "other programs used") || !strings.Contains(text, "waited for a processor") {
		t.Errorf("%q, %v", text, err)
	}
	if a := readTicks(); a.all <= 0 || a.busy <= 0 || a.busy > a.all {
		t.Errorf("%+v", a)
	}
}

func TestReplace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "doc.md")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("before\n<!-- a -->\nold\n<!-- /a -->\nafter\n<!-- b -->\nother\n<!-- /b -->\n")
	for range 2 { // and again
		if err := Replace(file, "a", "new\n"); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if want := "before\n<!-- a -->\nnew\n<!-- /a -->\nafter\n<!-- b -->\nother\n<!-- /b -->\n"; err != nil || string(b) != want {
		t.Errorf("%q, %v: want %q", b, err, want)
	}
	if err := Replace(file, "c", ""); !errors.Is(err, ErrSection) || !strings.Contains(err.Error(), "<!-- c -->") {
		t.Errorf("a section that is not there: %v", err)
	}
	write("<!-- /a -->\n<!-- a -->\n")
	if err := Replace(file, "a", ""); !errors.Is(err, ErrSection) {
		t.Errorf("a section that does not end: %v", err)
	}
	if err := Replace(file+"x", "a", ""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no document: %v", err)
	}
}
