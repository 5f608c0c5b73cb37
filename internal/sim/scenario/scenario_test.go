package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func parse(t *testing.T, text string) *File {
	t.Helper()
	f, err := Parse("test.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func mustRun(t *testing.T, text string) *Report {
	t.Helper()
	r, err := Run(t.Context(), parse(t, text), Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if r.Completed+r.Unfinished != r.Transfers && len(r.Failed) == 0 {
		t.Fatalf("%+v", r)
	}
	return r
}

// Every kind of workload on every topology ends with every byte in its place, with and without content.
func TestWorkloads(t *testing.T) {
	for _, topology := range []string{`{ kind = "full", nodes = 5 }`, `{ kind = "full", nodes = 70, routes = 3 }`, `{ kind = "qfdb" }`, `{ kind = "blade" }`, `{ kind = "torus", size = [3, 2, 1] }`} {
		for _, w := range []string{
			`kind = "write", from = 0, to = "1-3"`, `kind = "ping-pong", from = 0, to = 3, count = 3`, `kind = "incast", from = "1-3", to = 0`,
			`kind = "all-to-all", from = "0-3", to = "0-3"`, `kind = "halo", from = "0-3"`, `kind = "random", count = 20, most = "100KiB"`,
			`kind = "write", from = 1, to = 1`, `kind = "write", from = 0, to = "1-3", read = true`,
		} {
			for _, absent := range []string{"0", "0.3, absent-source = 0.3, urgent = true", "1, touch = true"} {
				text := fmt.Sprintf("topology = %s\nworkload = [{ %s, size = \"40KiB\", absent = %s }]\n", topology, w, absent)
				r := mustRun(t, text)
				if r.Completed != r.Transfers || r.Unfinished != 0 || r.Content != (r.Nodes <= contentNodes) {
					t.Errorf("%s%+v", text, r)
				}
			}
		}
	}
}

// Injections are overcome, or end the transfers that they concern and no others.
func TestInjections(t *testing.T) {
	for what, kind := range injections {
		in := fmt.Sprintf(`what = %q`, what)
		switch {
		case what == "link-cut":
			in += `, from = "40us", until = "3ms", link = "0-1"`
		case kind.most:
			in += `, probability = 0.2, most = "400us"`
		case kind.frames:
			in += `, probability = 0.1, nodes = "0-2", until = "3ms"`
		case kind.instant:
			in += `, from = "60us", nodes = 1`
		default:
			in += `, from = "40us", until = "3ms", nodes = "0,1"`
		}
		for _, read := range []bool{false, true} {
			topology := `{ nodes = 4 }`
			if what == "link-cut" {
				topology = `{ kind = "qfdb" }`
			}
			text := fmt.Sprintf("seed = 7\ntopology = %s\nfirmware = { timeout = \"500us\", guard = \"2ms\", outstanding = 4 }\n"+
				"workload = [{ kind = \"random\", count = 40, size = \"1B\", most = \"80KiB\", absent = 0.5, absent-source = 0.2, read = %v }]\ninject = [{ %s }]\n", topology, read, in)
			r := mustRun(t, text)
			if ends := kind.ends || what == "kill" || what == "unmap" || what == "abort" || what == "withdraw"; (len(r.Failed) > 0) != ends || r.Unfinished > 0 || r.Completed == 0 {
				t.Errorf("%s%+v", text, r)
			}
		}
	}
}

// The same scenario and seed have the same events and the same report, to the byte; another seed others.
func TestSameToTheByte(t *testing.T) {
	run := func(seed uint64) (string, []byte) {
		f := parse(t, `topology = { kind = "torus", size = [2, 2, 1] }
workload = [{ kind = "random", count = 50, size = "1B", most = "100KiB", absent = 0.5 }]
inject = [{ what = "lose-data", probability = 0.05 }]`)
		f.Seed = seed
		var log strings.Builder
		r, err := Run(t.Context(), f, Options{Watch: func(e *Event) { fmt.Fprintln(&log, e) }})
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return log.String(), b
	}
	a, aj := run(1)
	b, bj := run(1)
	c, cj := run(2)
	if a != b || !bytes.Equal(aj, bj) {
		t.Error("two runs of one scenario differ")
	}
	if a == c || bytes.Equal(aj, cj) {
		t.Error("the seed changes nothing")
	}
}

// The error of a wrong file names the line and the allowed values.
func TestBadFiles(t *testing.T) {
	const good = "workload = [{ kind = \"write\", from = 0, to = 1, size = \"4KiB\" }]\n"
	for _, c := range []struct{ text, want string }{
		{"", "no workload: add one"},
		{"sead = 1\n" + good, `:1: unknown key "sead": the keys are cold, costs, driver`},
		{"\ntopology = { kin = \"full\" }\n" + good, `:2: topology: unknown key "kin": the keys are hop, kind`},
		{good + "inject = [{ what = \"lose-ack\", probability = 0.1, often = 3 }]", `:2: inject 1: unknown key "often": the keys are from, link`},
		{"limit = \"3 parsecs\"\n" + good, `:1: "3 parsecs" is no time`},
		{"limit = \"-3ms\"\n" + good, `:1: the time -3ms is negative`},
		{"limit = \"0s\"\n" + good, ":1: limit is the simulated time"},
		{"limit = 5\n" + good, `:1: limit is 5: want a text with a unit, as "2ms"`},
		{"Seed = 1\n" + good, `:1: unknown key "Seed"`},
		{"workload = [{ kind = \"write\", from = -1, to = 1, size = \"1B\" }]", ":1: workload 1: from is -1: want a number, or a text"},
		{"workload = [{ kind = \"write\", from = 0, to = 1, size = true }]", `:1: workload 1: size is true: want a text with a unit, as "64KiB"`},
		{"workload = [{ kind = \"write\", from = 0, to = 1, size = \"1B\", count = 1.5 }]", "count is 1.5: want a number without a point"},
		{"topology = 3\n" + good, ":1: topology: want a table"},
		{"workload = 3", ":1: workload 1: want a list of tables"},
		{"[[workload]]\nkind = \"write\"\nfrom = 0\nto = 1\nsize = \"4KiB\"\n[[workload]]\nkind = \"write\"\nsize = \"0\"\n", ":6: workload 2: size: want"},
		{"workload = [{ kind = \"write\", from = 0, to = 1, size = \"1B\", absent = nan }]", "want 0 to 1"},
		{"limit = \"1ms\"\nworkload = [{ kind = \"write\", from = 0, to = 1, size = \"1B\", start = \"2ms\" }]", ":2: workload 1: start is 2ms, and the limit is 1ms"},
		{"\n\nworkload = [{ kind = \"write\", from = 0, to = 1, size = \"4 furlongs\" }]", `:3: size "4 furlongs": no unit`},
		{"topology = { kind = \"torus\", size = [4, 4] }\n" + good, ":1: topology: a torus has a size of three numbers"},
		{"topology = { kind = \"torus\", size = [40, 40, 40] }\n" + good, "more than 4096 nodes"},
		{"topology = { kind = \"torus\", size = [-1, 4, 4] }\n" + good, "each number is 1 or more"},
		{"topology = { kind = \"moebius\" }\n" + good, `kind "moebius": want full, qfdb, blade or torus`},
		{"topology = { kind = \"blade\", rate = \"ten\" }\n" + good, `:1: "ten" is no rate`},
		{"topology = { kind = \"blade\", nodes = 4 }\n" + good, "nodes and routes are of kind full"},
		{"topology = { nodes = 2 }\nworkload = [{ kind = \"write\", from = 0, to = 7, size = \"4KiB\" }]", ":2: workload 1: to: node 7, and the topology has 2: 0 to 1"},
		{"workload = [\n  { kind = \"write\", from = 0, to = 1, size = \"4KiB\" },\n  { kind = \"swim\", from = 0, to = 1, size = \"4KiB\" }]", `:3: workload 2: kind "swim": want write`},
		{"workload = [{ kind = \"write\", from = 0, to = 1, size = \"0\" }]", "size: want 1B to 64MiB"},
		{"workload = [{ kind = \"write\", from = 0, to = \"x\", size = \"1\" }]", `"x" names no nodes`},
		{"driver = { policy = \"pq\" }\n" + good, ":1: driver: "},
		{"firmware = { outstanding = 0 }\n" + good, ":1: firmware: outstanding is 0: want 1 to 1024"},
		{"firmware = { rate = \"slow\" }\n" + good, `:1: firmware: rate "slow": want path-feedback`},
		{good + "inject = [{ what = \"lose-ack\" }]", ":2: inject 1: lose-ack has a probability"},
		{good + "inject = [{ what = \"rain\", probability = 1 }]", `what is "rain": want abort, corrupt`},
		{"workload = [{ kind = \"recording\" }]", "has the file of a recording"},
		{"workload = [{ kind = \"recording\", file = \"x\", size = \"4KiB\" }]", "the recording has size"},
		{"workload = [{ kind = \"write\", file = \"x\", size = \"4KiB\" }]", "has the file of a recording"},
		{good + "inject = [{ what = \"replay\", probability = 0.1 }]", "have the longest delay"},
		{good + "inject = [{ what = \"power\", from = \"1ms\" }]", "power has an end"},
		{good + "inject = [{ what = \"link-cut\", until = \"1ms\", link = \"0-1\" }]", ":2: inject 1: link-cut cuts a link of kind qfdb"},
		{"topology = { kind = \"blade\" }\n" + good + "inject = [{ what = \"link-cut\", until = \"1ms\", link = \"1-5\" }]", ":3: inject 1: blade has no link from node 1 to node 5"},
		{"topology = { kind = \"blade\" }\n" + good + "inject = [{ what = \"link-cut\", until = \"1ms\", link = \"15\" }]", `link is "15": want two nodes`},
		{good + "inject = [{ what = \"evict\", link = \"0-1\" }]", "link-cut, and nothing else, has a link"},
		{good + "inject = [{ what = \"kill\", until = \"1s\" }]", "kill happens at from"},
		{good + "inject = [{ what = \"link-down\", from = \"2s\", until = \"1s\" }]", "until is not after from"},
		{"workload = [", "test.toml:1"},
		{"seed = \"a\"\n" + good, ":1: seed is a: want a number without a point"},
	} {
		f, err := Parse("test.toml", []byte(c.text))
		if !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "scenario test.toml") {
			t.Errorf("%q: %v, %v, want %s", c.text, f, err, c.want)
		}
	}
}

// A file's text is read as the same file, for many random files; each runs.
func TestRandomFiles(t *testing.T) {
	n := 60
	if v, err := strconv.Atoi(os.Getenv("PFD_SCENARIOS")); err == nil {
		n = v
	}
	for seed := range n {
		f := random(rand.New(rand.NewPCG(uint64(seed), 9)))
		text, err := f.Text()
		if err != nil {
			t.Fatal(err)
		}
		g, err := Parse("random.toml", text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		again, err := g.Text()
		if err != nil || !bytes.Equal(text, again) {
			t.Fatalf("%v: the text\n%sis read as\n%s", err, text, again)
		}
		if _, err := Run(t.Context(), g, Options{}); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
	}
}

// random returns a random file.
func random(rng *rand.Rand) *File {
	f := New()
	pick := func(n int) int { return rng.IntN(n) }
	f.Seed = rng.Uint64() >> 1
	f.Topology = []Topology{{Kind: "full", Nodes: 4 + pick(5)}, {Kind: "qfdb"}, {Kind: "blade", Rate: 10e9, Hop: 500}, {Kind: "torus", Size: []int{1 + pick(3), 1 + pick(2), 1}}}[pick(4)]
	f.Driver.Policy = []string{"p1", "p4", "pa", "adaptive"}[pick(4)]
	f.Firmware = Firmware{
		Timeout: Duration(20_000_000 + pick(9)*1_000_000), Guard: Duration(20_000_000 + pick(9)*1_000_000), Outstanding: 1 + pick(8),
		IDs: []int{0, 0, 4}[pick(3)], FIFO: []int{0, 0, 2}[pick(3)], Contexts: []int{0, 0, 3}[pick(3)], Rate: []string{"", "", pathFeedback}[pick(3)],
	}
	for range 1 + pick(3) {
		w := Workload{
			Kind: []string{"write", "incast", "all-to-all", "halo", "random"}[pick(5)], Size: Size(1 + pick(100_000)), Start: Duration(pick(50_000)),
			Absent: float64(pick(11)) / 10, Gone: float64(pick(3)) / 10, Read: pick(3) == 0, Urgent: pick(5) == 0, Touch: pick(6) == 0, Count: 1 + pick(3),
		}
		switch w.Kind {
		case "incast":
			w.To = Nodes{pick(4)}
		case "random":
			w.Count, w.Most = 10+pick(30), w.Size+Size(pick(100_000))
		case "all-to-all", "write":
			w.From, w.To = Nodes{0, 1, 2}, Nodes{1, 3}
		}
		f.Workload = append(f.Workload, w)
	}
	for _, what := range slices.Sorted(maps.Keys(injections)) {
		k := injections[what]
		if pick(6) != 0 {
			continue
		}
		in := Inject{What: what, From: Duration(pick(100_000)), Nodes: []Nodes{nil, {1}, {0, 2}}[pick(3)]}
		if !k.instant {
			in.Until = in.From + Duration(1+pick(3_000_000))
		}
		if k.frames {
			in.Probability = float64(1+pick(100)) / 1000
		}
		if k.most {
			in.Most = Duration(1 + pick(100_000))
		}
		if what == "link-cut" {
			if in.Nodes, in.Link = nil, "0-1"; f.Topology.Kind == "full" {
				continue
			}
		}
		f.Inject = append(f.Inject, in)
	}
	return f
}
