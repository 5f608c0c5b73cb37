package scenario

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// Every scenario that comes with the program says what it is, and ends without a violation. The one of
// 4096 nodes takes minutes: it is only read.
func TestReady(t *testing.T) {
	list := ReadyOnes()
	if len(list) < 9 {
		t.Errorf("only %d scenarios come with the program", len(list))
	}
	for _, r := range list {
		text, err := ReadyText(r.Name)
		if err != nil || r.About == "" {
			t.Fatalf("%s: %v", r.Name, err)
		}
		f, err := Parse(r.Name, text)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := f.nodes(); err != nil || n > 1000 {
			continue
		}
		report, err := Run(t.Context(), f, Options{})
		if err != nil || report.Completed != report.Transfers {
			t.Errorf("%s: %v, %+v", r.Name, err, report)
		}
		if r.Name == "incast-16" && (report.Links[0].Highest != 16 || report.Links[0].Waiting == 0 || report.Links[0].PausedNS == 0) {
			t.Errorf("%s: the queues are not full: %+v", r.Name, report.Links[0])
		}
		if r.Name == "incast-16" {
			f.Firmware.Rate = pathFeedback
			limited, err := Run(t.Context(), f, Options{})
			if err != nil || limited.Completed != limited.Transfers || limited.EndNS > report.EndNS*12/10 || limited.Groups[1].P99NS > report.Groups[1].P99NS/50 {
				t.Errorf("%s: %v, %+v", r.Name, err, limited)
			}
			for i := range limited.Links {
				if l := &limited.Links[i]; l.Highest > 8 || l.PausedNS != 0 {
					t.Errorf("%s with path feedback: %+v", r.Name, l)
				}
			}
		}
	}
	if _, err := ReadyText("../doc"); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), "incast-16") {
		t.Error(err)
	}
}

// The Perfetto file is JSON whose slices begin and end.
func TestPerfetto(t *testing.T) {
	var b bytes.Buffer
	p := NewPerfetto(&b)
	f := parse(t, "workload = [{ kind = \"incast\", from = \"1-3\", to = 0, size = \"40KiB\", absent = 0.5 }]\ninject = [{ what = \"lose-data\", probability = 0.1 }]")
	if _, err := Run(t.Context(), f, Options{Watch: p.Add}); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	var trace struct {
		TraceEvents []struct {
			Ph, Name string
			Ts, Dur  float64
			Pid, Tid int
			Args     map[string]any
		}
	}
	if err := json.Unmarshal(b.Bytes(), &trace); err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	open, kinds, names := map[int]int{}, map[string]int{}, map[int]bool{}
	for _, e := range trace.TraceEvents {
		kinds[e.Ph]++
		switch e.Ph {
		case "M":
			names[e.Pid] = true
		case "B":
			open[e.Tid]++
		case "E":
			open[e.Tid]--
		}
		if e.Ph != "M" && !names[e.Pid] || e.Ts < 0 || e.Dur < 0 {
			t.Errorf("%+v", e)
		}
	}
	for transfer, n := range open {
		if n != 0 {
			t.Errorf("transfer %d: %d slices are open", transfer, n)
		}
	}
	if kinds["B"] != 3 || kinds["X"] < 9 || kinds["i"] < 9 {
		t.Errorf("%v", kinds)
	}
}

func TestSet(t *testing.T) {
	text := []byte("workload = [{ kind = \"write\", from = 0, to = 1, size = \"4KiB\" }]\n")
	for _, c := range []struct{ key, value, want string }{
		{"driver.policy", "p1", ""}, {"workload.0.absent", "0.5", ""}, {"seed", "7", ""}, {"topology", "{ kind = \"blade\" }", ""},
		{"workload.1.absent", "0.5", "no place in a list of 1"}, {"workload.x.absent", "0.5", "no place"}, {"inject.0.what", "kill", "the file has no inject"},
		{"seed.x", "1", "a value that has no keys"},
	} {
		out, err := Set(text, c.key, c.value)
		switch {
		case c.want == "" && err == nil:
			text = out
		case c.want == "" || err == nil || !strings.Contains(err.Error(), c.want):
			t.Errorf("%s=%s: %v, want %q", c.key, c.value, err, c.want)
		}
	}
	f := parse(t, string(text))
	if f.Driver.Policy != "p1" || f.Workload[0].Absent != 0.5 || f.Seed != 7 || f.Topology.Kind != "blade" {
		t.Errorf("%s", text)
	}
	if _, err := Set([]byte("["), "a", "b"); !errors.Is(err, ErrFile) {
		t.Error(err)
	}
}

// No text of a value makes it crash, and each that is accepted is written in a form that is read alike.
func FuzzUnits(f *testing.F) {
	for _, s := range []string{"150ns", "-1s", "64KiB", "10Gb/s", "0.5Mb/s", "0-3,8", "all", "4-1", "99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var d Duration
		var size Size
		var r Rate
		var n Nodes
		for _, v := range []interface {
			encoding.TextUnmarshaler
			encoding.TextMarshaler
		}{&d, &size, &r, &n} {
			if v.UnmarshalText([]byte(s)) != nil {
				continue
			}
			out, err := v.MarshalText()
			if err == nil {
				err = v.UnmarshalText(out)
			}
			if err != nil {
				t.Fatalf("%q is written as %q: %v", s, out, err)
			}
		}
	})
}

// No text makes Parse crash, and what it accepts it can write and read again.
func FuzzParse(f *testing.F) {
	f.Add([]byte(failing))
	for _, r := range ReadyOnes() {
		text, _ := ReadyText(r.Name)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := Parse("f", text)
		if err != nil {
			if !errors.Is(err, ErrFile) {
				t.Fatal(err)
			}
			return
		}
		out, err := file.Text()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Parse("f", out); err != nil || again.Seed != file.Seed {
			t.Fatalf("%v\n%s", err, out)
		}
	})
}
