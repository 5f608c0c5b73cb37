package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/internal/folios"
	"github.com/exanet/pfd/internal/folios/foliotest"
	"github.com/exanet/pfd/internal/maybe"
)

// openPerf opens a measurement with a target in this process, in a child, or under a name.
func (l *live) openPerf(t *testing.T, o Options, name string) *Perf {
	t.Helper()
	p, err := OpenPerf(t.Context(), l.client, o, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// With each kind of target, a measurement makes exactly the requested transfers, faults only
// on absent pages, and pins nothing.
func TestPerf(t *testing.T) {
	l := startLive(t)
	serving, ready := make(chan error, 1), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		serving <- ServePerf(ctx, l.client, l.options(t, "gup", "p1"), "test-perf", func() { close(ready) })
	}()
	<-ready
	for _, way := range []string{"process", "child", "name"} {
		o, name := l.options(t, "gup", "p1"), ""
		switch way {
		case "process":
			o.Command = nil
		case "name":
			name = "test-perf"
		}
		p := l.openPerf(t, o, name)
		for _, q := range []PerfRun{
			{Size: 16, Count: 10, Parts: 8, Notify: true},
			{Size: 4096, Count: 10, Parts: 8, Dst: 1},
			{Size: 4096, Count: 10, Parts: 8, Memory: Any, Dst: 1},
			{Size: 4096, Count: 10, Parts: 8, Memory: Any},
			{Size: 4096, Count: 10, Parts: 8, Memory: Shared},
			{Size: 5000, Count: 10, Parts: 8, Memory: Any, Read: true, Src: 0.5, Dst: 1},
			{Size: 5000, Count: 10, Parts: 8, Src: 1, Dst: 0.5, Order: Random},
			{Size: 4096, Count: 10, Parts: 8, Read: true, Src: 1, Dst: 1, Order: Strided},
			{Size: 64 << 10, Count: 10, Parts: 16, Depth: 8, Dst: 1, Order: Zipf},
			{Size: 4096, Count: 4, Parts: 8, Dst: 1, Touch: true, Sleep: true},
			{Size: 100, Time: time.Millisecond, Parts: 8},
		} {
			before := l.faults(t)
			r, err := p.Run(t.Context(), q)
			if err != nil {
				t.Fatalf("%s: %+v: %v", way, q, err)
			}
			each := q.Parts - cold(q.Parts)
			rows := (q.Count + each - 1) / each
			if q.Count > 0 && (len(r.Rows) != rows || len(r.Latencies) != rows*each) {
				t.Errorf("%s: %+v: %d rows with %d transfers that count, want %d with %d", way, q, len(r.Rows), len(r.Latencies), rows, rows*each)
			}
			if want := cmp.Or(q.Memory, Shared); r.Memory != want {
				t.Errorf("%s: %+v: memory %q", way, q, r.Memory)
			}
			if q.Notify != (len(r.Notified) == len(r.Latencies)) || r.Pinned != 0 || slices.Min(r.Latencies) <= 0 {
				t.Errorf("%s: %+v: %d notifications, %d bytes pinned, %v", way, q, len(r.Notified), r.Pinned, r.Latencies)
			}
			if got := l.faults(t) - before; (got > 0) != (q.Src+q.Dst > 0 && !q.Touch) {
				t.Errorf("%s: %+v: %d faults", way, q, got)
			}
		}
		for _, q := range []MessageRun{{Words: 1, Count: 10}, {Words: 8, Time: time.Microsecond}} {
			r, err := p.Messages(t.Context(), q)
			if err != nil {
				t.Fatalf("%s: %+v: %v", way, q, err)
			}
			if len(r.Rows) != 1 || r.Transfers() != messageRow || len(r.Latencies) != messageRow-cold(messageRow) || slices.Min(r.Latencies) <= 0 || r.Pinned != 0 {
				t.Errorf("%s: %+v: %d rows, %d latencies", way, q, len(r.Rows), len(r.Latencies))
			}
		}
		for _, q := range []StreamRun{{Size: 100, Count: 5000}, {Size: 1 << 20, Time: time.Microsecond}, {Size: 3 << 20, Count: 1}} {
			r, err := p.Streams(t.Context(), q)
			if err != nil {
				t.Fatalf("%s: %+v: %v", way, q, err)
			}
			if r.Transfers() < q.Count || len(r.Latencies) == 0 || slices.Min(r.Latencies) <= 0 || r.Pinned != 0 {
				t.Errorf("%s: %+v: %d rows, %d latencies", way, q, len(r.Rows), len(r.Latencies))
			}
		}
		if _, err := p.Streams(t.Context(), StreamRun{Count: 1}); !errors.Is(err, ErrRequest) {
			t.Errorf("%s: writes of no bytes into a stream: %v", way, err)
		}
		for _, words := range []int{0, 9} {
			if _, err := p.Messages(t.Context(), MessageRun{Words: words, Count: 1}); !errors.Is(err, ErrRequest) {
				t.Errorf("%s: messages of %d words: %v", way, words, err)
			}
		}
	}
	if _, err := OpenPerf(t.Context(), l.client, l.options(t, "gup", "p1"), "nobody"); err == nil || !strings.Contains(err.Error(), "perf serve nobody") {
		t.Errorf("a name that nobody serves: %v", err)
	}
	stop()
	if err := <-serving; err != nil {
		t.Error(err)
	}
}

// The measured memory is of the requested kind: pfd maps shared memory and no other memory of
// a process. Under method uffd no memory is shared.
func TestPerfMemory(t *testing.T) {
	l := startLive(t)
	status, err := l.client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mapped := func() int { // by pfd
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", status.PID))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(b), "exanet-buffer")
	}
	for _, c := range []struct {
		method      string
		asked, want Memory
		mapped      int // data and words of both ends
	}{{"gup", "", Shared, 4}, {"gup", Any, Any, 2}, {"populate", Shared, Shared, 4}, {"touch", Any, Any, 2}, {"uffd", Shared, Any, 0}, {"uffd", Any, Any, 0}} {
		had := mapped()
		p := l.openPerf(t, l.options(t, c.method, "p1"), "")
		q := PerfRun{Memory: c.asked, Size: 4096, Count: 10, Parts: 8, Src: 1, Dst: 1}
		before := l.faults(t)
		r, err := p.Run(t.Context(), q)
		if err != nil || r.Memory != c.want || !slices.Contains(p.Memories(), r.Memory) {
			t.Fatalf("%s, %q: memory %q of %q, %v", c.method, c.asked, r.Memory, p.Memories(), err)
		}
		if n := l.faults(t) - before; n < 16 {
			t.Errorf("%s, %q: %d faults of 8 transfers between absent pages", c.method, c.asked, n)
		}
		if n := mapped() - had; n != c.mapped {
			t.Errorf("%s, %q: pfd has mapped %d files more, want %d", c.method, c.asked, n, c.mapped)
		}
	}
}

func (l *live) faults(t *testing.T) uint64 {
	t.Helper()
	s, err := l.client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Faults
}

// An invalid measurement is refused before any transfer.
func TestPerfRefuses(t *testing.T) {
	for _, q := range []PerfRun{
		{Count: 1}, {Size: 1}, {Size: 1, Count: 1, Depth: 33}, {Size: 1, Count: 1, Dst: 2}, {Size: 1, Count: 1, Memory: "none"}, {Size: 1, Count: 1, Src: -1},
		{Size: 1, Count: 1, Notify: true, Read: true}, {Size: 1, Count: 1, Notify: true, Order: Zipf}, {Size: MaxSize + 1, Count: 1}, {Size: 1, Count: 1, Order: "sideways"},
	} {
		if err := q.Check(); !errors.Is(err, ErrRequest) {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

// A transfer counts as beside others if it lies entirely in one row of each of them.
func TestAmid(t *testing.T) {
	r := PerfResult{Starts: []int64{10, 20, 30, 40}, Latencies: []int64{5, 6, 7, 8}}
	row := func(start, elapsed int64) PerfRow {
		return PerfRow{Start: start, Elapsed: time.Duration(elapsed)}
	}
	for _, c := range []struct {
		name   string
		others [][]PerfRow
		want   []int64
	}{
		{"nobody", nil, []int64{5, 6, 7, 8}},
		{"all of it", [][]PerfRow{{row(0, 100)}}, []int64{5, 6, 7, 8}},
		{"to the nanosecond", [][]PerfRow{{row(20, 17)}}, []int64{6, 7}},
		{"one row ends in between", [][]PerfRow{{row(0, 33), row(33, 67)}}, []int64{5, 6, 8}},
		{"one of two", [][]PerfRow{{row(0, 100)}, {row(0, 26)}}, []int64{5, 6}},
		{"one without rows", [][]PerfRow{{row(0, 100)}, nil}, nil},
	} {
		if got := r.Amid(c.others); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestPatterns(t *testing.T) {
	for _, p := range []Pattern{Sequential, Strided, Random} {
		for _, n := range []int{1, 4, 7, 50} {
			list := p.order(n, 3)
			slices.Sort(list)
			for i, v := range list {
				if i != v {
					t.Fatalf("%s of %d: not each once: %v", p, n, list)
				}
			}
		}
	}
	list := Zipf.order(200, 3)
	if slices.Min(list) < 0 || slices.Max(list) >= 200 || len(slices.Compact(slices.Sorted(slices.Values(list)))) > 100 {
		t.Errorf("zipf: %v", list)
	}
}

// Every strategy puts every byte at its place and pins as many bytes as it states.
func TestStrategies(t *testing.T) {
	l := startLive(t)
	o := l.options(t, "gup", "p1")
	const pages, limit = 32, 16
	for i := range Strategies {
		s := &Strategies[i]
		p := l.openPerf(t, o, "")
		r, err := p.Puts(t.Context(), s, StrategyRun{Size: 8, Pages: pages, Puts: 200, Limit: limit})
		if text := Skipped(err); text != "" {
			t.Skip(text)
		}
		if err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		want := map[string]int64{"pin everything": 2 * pages, "rendezvous": 2 * pages, "pin-down cache": 2 * limit, "Firehose": 2 * (limit + limit/8), "bounce buffers": 2, "backup ring": 2}[s.Name]
		if len(r.Latencies) != 200 || r.Pinned != want*pageSize || r.Resident != pages*pageSize {
			t.Errorf("%s: %d puts, %d bytes pinned, want %d; %d resident", s.Name, len(r.Latencies), r.Pinned, want*pageSize, r.Resident)
		}
		if s.Lines() < 3 {
			t.Errorf("%s: %d lines", s.Name, s.Lines())
		}
	}
}

// Memory comes in by folios where the setting allows it, as a measurement and a run report, and every
// byte is checked as of other memory.
func TestFolios(t *testing.T) {
	for _, kib := range []int{0, 64} {
		t.Run(fmt.Sprint(kib), func(t *testing.T) {
			foliotest.Set(t, kib)
			l := startLive(t)
			for _, k := range []struct {
				method string
				memory Memory
				none   string // why there are no folios whatever the setting
			}{{"touch", Shared, ""}, {"gup", Shared, ""}, {"gup", Any, ""}, {"uffd", Any, "method uffd"}} {
				want, why := 1, k.none
				switch {
				case kib == 0 && why == "":
					why = map[Memory]string{Shared: folios.SharedLine, Any: folios.PrivateLine}[k.memory]
				case why == "":
					want = kib << 10 / pageSize
				}
				right := func(f Folio) bool {
					return f.Pages == want && (f.Single == "") == (why == "") && strings.Contains(f.Single, why)
				}
				p := l.openPerf(t, l.options(t, k.method, "p1"), "")
				for _, q := range []PerfRun{
					{Dst: 1}, {Src: 1, Read: true}, {Src: 1, Dst: 1, Order: Random}, {Dst: 0.5}, {},
				} {
					q.Memory, q.Folios, q.Size, q.Count, q.Parts = k.memory, true, pageSize, 30, 40
					r, err := p.Run(t.Context(), q)
					if err != nil || !right(r.Folio) {
						t.Fatalf("%+v: folio %+v, want %d pages, %v", q, r.Folio, want, err)
					}
					first, present := r.ByFolio()
					count := 0
					if want > 1 && max(q.Src, q.Dst) == 1 {
						count = len(r.Latencies)
					}
					if len(first)+len(present) != count || count > 0 && q.Order == "" && len(first) == 0 {
						t.Errorf("%+v: %d transfers bring in a folio and %d do not, of %d", q, len(first), len(present), len(r.Latencies))
					}
				}
				// The same end's memory without folios.
				if r, err := p.Run(t.Context(), PerfRun{Memory: k.memory, Size: pageSize, Count: 8, Parts: 8, Dst: 1}); err != nil || r.Folio != (Folio{}) {
					t.Errorf("without folios: %+v, %v", r.Folio, err)
				}
				if k.memory == Any && k.none == "" {
					continue // buffers of a run are memory of the library
				}
				q := Request{Options: l.options(t, k.method, "p1"), Count: 2, Size: 100000, Offset: 5, Src: Present, Dst: Absent, Folios: true, Waiting: Auto, Seed: 1}
				r, err := Run(t.Context(), l.client, q)
				if err != nil || !r.OK() || !right(r.Folio) || r.FolioBytes != maybe.Number(want*pageSize) || (r.SinglePages == nil) != (why == "") {
					t.Errorf("%s: %+v, %v", k.method, r, err)
				}
			}
		})
	}
}

// A transfer is the first one of a folio whatever the order, and may span several.
func TestFirstOfAFolio(t *testing.T) {
	for _, c := range []struct {
		pages        int
		stride, size uint64
		parts        []int
		want         string
	}{
		{4, pageSize, pageSize, []int{0, 1, 2, 3, 4, 5, 9, 8, 0}, "100010100"},
		{4, pageSize, 1, []int{7, 6, 3, 8}, "1011"},
		{4, 2 * pageSize, 2 * pageSize, []int{0, 1, 2}, "101"},
		{4, 16 * pageSize, 16 * pageSize, []int{1, 0, 1}, "110"},
		{4, 3 * pageSize, 3 * pageSize, []int{0, 1, 2, 3}, "1110"},
	} {
		got := ""
		for _, first := range (Folio{Pages: c.pages}).firsts(c.parts, c.stride, c.size) {
			got += map[bool]string{true: "1", false: "0"}[first]
		}
		if got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
