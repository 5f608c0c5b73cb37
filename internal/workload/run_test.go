package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/maybe"
)

func fakeRequest(t *testing.T, how string) Request {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Request{
		Options: Options{Socket: "none", From: 0, To: 1, Method: "gup", Policy: "p1", Command: []string{self}, Env: []string{fakeEnv + "=" + how, "GORACE=atexit_sleep_ms=0"}},
		Count:   2, Size: 5000, Src: Present, Dst: Present, Waiting: Auto, Seed: 42,
	}
}

// keys are the keys of a result's JSON in their order (docs/exanetctl.md).
const keys = `transfers bytes verified failed error faults pages_paged_in rapf retransmits timeouts guards pinned_bytes latency_us throughput_gbps waiting folio_bytes single_pages counters_node counters_others`

func checkKeys(t *testing.T, r Result) {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	dec := json.NewDecoder(strings.NewReader(string(text)))
	for depth := 0; ; {
		tok, err := dec.Token()
		if err != nil {
			break
		}
		switch tok {
		case json.Delim('{'):
			depth++
			continue
		case json.Delim('}'):
			depth--
			continue
		}
		if depth == 1 {
			got = append(got, fmt.Sprint(tok))
			if tok != "latency_us" && dec.More() {
				if _, err := dec.Token(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if want := strings.Fields(keys); !slices.Equal(got, want) {
		t.Errorf("keys of %s:\n got %q\nwant %q", text, got, want)
	}
}

func TestRun(t *testing.T) {
	const count, size = 2, 5000
	for _, c := range []struct {
		name      string
		warm      bool
		how       string
		src, dst  State
		waiting   Waiting
		transfers int
		failed    int
		verified  bool
		errText   string // "" none
		broken    bool   // Run returns an error
	}{
		{name: "present to present", how: "ok", src: Present, dst: Present, waiting: Poll, transfers: 2, verified: true},
		{name: "warmed up", warm: true, how: "ok", src: Present, dst: Absent, waiting: Poll, transfers: 2, verified: true},
		{name: "warming up hangs", warm: true, how: "stuck", src: Present, dst: Absent, waiting: Poll, errText: "warming up", broken: true},
		{name: "present to absent, sleeping", how: "ok", src: Present, dst: Absent, waiting: Wait, transfers: 2, verified: true},
		{name: "absent to present", how: "ok", src: Absent, dst: Present, waiting: Poll, transfers: 2, verified: true},
		{name: "alternate to alternate", how: "ok", src: Alternate, dst: Alternate, waiting: Poll, transfers: 2, verified: true},
		{name: "copy-on-write both ends", how: "ok", src: COW, dst: COW, waiting: Poll, transfers: 2, verified: true},
		{name: "read-only source", how: "ok", src: ReadOnly, dst: Absent, waiting: Poll, transfers: 2, verified: true},
		{name: "read-only destination", how: "ok", src: Present, dst: ReadOnly, waiting: Poll, transfers: 2, failed: 2, verified: true, errText: "bad address"},
		{name: "unmapped destination", how: "ok", src: Present, dst: Unmapped, waiting: Wait, transfers: 2, failed: 2, verified: true, errText: "bad address"},
		{name: "unmapped source", how: "ok", src: Unmapped, dst: Present, waiting: Wait, transfers: 2, failed: 2, verified: true, errText: "bad address"},
		{name: "half arrives, said to have failed", how: "half", src: Present, dst: Present, waiting: Wait, transfers: 2, failed: 2, verified: true, errText: "no more of it"},
		{name: "nothing arrives, said to have arrived", how: "forget", src: Present, dst: Present, waiting: Wait, transfers: 2, errText: "bytes are wrong, the first at byte 0 of the buffer"},
		{name: "zeros do not arrive at absent memory", how: "forget", src: Absent, dst: Absent, waiting: Wait, transfers: 2, errText: "2 pages are absent"},
		{name: "a byte too many", how: "beyond", src: Present, dst: Present, waiting: Wait, transfers: 2, errText: "1 bytes are wrong, the first at byte 5000"},
		{name: "attachment refused", how: "refuse", src: Present, dst: Present, waiting: Wait, errText: "no slot is free", broken: true},
		{name: "initiator dies", how: "die", src: Present, dst: Present, waiting: Wait, transfers: 1, errText: "something broke", broken: true},
		{name: "a transfer hangs, polling", how: "stuck", src: Present, dst: Present, waiting: Poll, errText: "did not end within", broken: true},
		{name: "a transfer hangs, sleeping", how: "stuck", src: Present, dst: Present, waiting: Wait, errText: "did not end within", broken: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := fakeRequest(t, c.how)
			q.Src, q.Dst, q.Waiting, q.Count, q.Size, q.Warm = c.src, c.dst, c.waiting, count, size, c.warm
			if c.how == "stuck" {
				q.Timeout = 10 * time.Millisecond
			}
			var progress []int
			q.Progress = func(done int) { progress = append(progress, done) }
			r, err := Run(t.Context(), &fakeDaemon{}, q)
			checkKeys(t, r)
			if (err != nil) != c.broken {
				t.Errorf("error %v, want one: %v", err, c.broken)
			}
			if r.Transfers != c.transfers || r.Failed != c.failed || r.Verified != c.verified || r.Waiting != c.waiting {
				t.Errorf("got %+v, want %+v", r, c)
			}
			if c.errText == "" {
				if r.Error != nil {
					t.Errorf("error %q, want none", *r.Error)
				}
			} else if r.Error == nil || !strings.Contains(*r.Error, c.errText) {
				t.Errorf("error %v, want one with %q", deref(r.Error), c.errText)
			}
			if want := uint64(c.transfers-c.failed) * size; r.Bytes != want {
				t.Errorf("%d bytes, want %d", r.Bytes, want)
			}
			if len(progress) != c.transfers {
				t.Errorf("progress %v, want %d calls", progress, c.transfers)
			}
			if r.PinnedBytes != 0 && r.Transfers > 0 {
				t.Errorf("%v bytes pinned, want 0", r.PinnedBytes)
			}
			arrived := c.transfers > c.failed
			if r.Latency.P50.Known() != arrived || r.ThroughputGbps.Known() != arrived || r.Latency.P99.Known() {
				t.Errorf("latency %+v, throughput %v where arrived is %v", r.Latency, r.ThroughputGbps, arrived)
			}
			if (c.how == "ok" || c.how == "half" || c.how == "stuck") && (r.Faults != 45 || r.PagesPagedIn != 90+2*3 || r.RAPF != 27 || r.Retransmits != 45 || r.Timeouts != 63 || r.Guards != 99) {
				t.Errorf("counters %+v, want nine times the first values of the two domains and of node 0, and 3 pages of each process", r)
			}
			if r.OK() != (c.errText == "") {
				t.Errorf("OK is %v", r.OK())
			}
		})
	}
}

func deref(s *string) string {
	if s == nil {
		return "none"
	}
	return *s
}

func TestRunRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*Request)
		want string
	}{
		{"no transfers", func(q *Request) { q.Count = 0 }, "count 0"},
		{"too large", func(q *Request) { q.Size = 1 << 32 }, "size 4294967296"},
		{"offset too large", func(q *Request) { q.Offset = 1<<30 + 1 }, "offset"},
		{"negative node", func(q *Request) { q.To = -2 }, "ids from 0"},
		{"no command", func(q *Request) { q.Command = nil }, "no command"},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := fakeRequest(t, "ok")
			c.edit(&q)
			r, err := Run(t.Context(), &fakeDaemon{}, q)
			if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			checkKeys(t, r)
			if r.Error == nil || r.Verified {
				t.Errorf("got %+v", r)
			}
		})
	}
}

// The library refuses a size of 0. The run reports that and continues.
func TestRunSizeZero(t *testing.T) {
	q := fakeRequest(t, "ok")
	q.Size = 0
	r, err := Run(t.Context(), &fakeDaemon{}, q)
	if err != nil || r.Failed != 2 || r.Error == nil || !strings.Contains(*r.Error, "at least one byte") {
		t.Errorf("got %+v (%s), %v", r, deref(r.Error), err)
	}
}

func TestRunNoDaemon(t *testing.T) {
	r, err := Run(t.Context(), &fakeDaemon{err: control.ErrNoDaemon}, fakeRequest(t, "ok"))
	if !errors.Is(err, control.ErrNoDaemon) || r.Error == nil {
		t.Errorf("got %+v, %v", r, err)
	}
	checkKeys(t, r)
}

func TestRunNoNode(t *testing.T) {
	q := fakeRequest(t, "ok")
	q.To = 7
	r, err := Run(t.Context(), &fakeDaemon{}, q)
	if !errors.Is(err, ErrNode) || r.Error == nil || !strings.Contains(*r.Error, "node 7") {
		t.Errorf("got %+v, %v", r, err)
	}
	checkKeys(t, r)
}

// The end of the context ends the run and both processes.
func TestRunInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	q := fakeRequest(t, "ok")
	q.Count = 1 << 30
	q.Progress = func(int) { cancel() }
	r, err := Run(ctx, &fakeDaemon{}, q)
	if !errors.Is(err, context.Canceled) || r.Transfers == 0 || r.Transfers == q.Count {
		t.Errorf("got %+v, %v", r, err)
	}
	checkKeys(t, r)
}

// The end of the context and the end of pfd also end concurrent transfers.
func TestRunParallelBrokenOff(t *testing.T) {
	set := []Parallel{{Size: 4096}, {Size: 4096}}
	q := fakeRequest(t, "ok")
	q.Count = 1 << 30
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if r, _, err := RunParallel(ctx, &fakeDaemon{}, q, set); !errors.Is(err, cause) {
		t.Errorf("interrupted: got %+v, %v", r, err)
	}
	d := &fakeDaemon{}
	q.Progress = nil
	if r, _, err := RunParallel(t.Context(), d.ends(t, &q), q, set); !errors.Is(err, control.ErrEnded) || r.Error == nil {
		t.Errorf("without pfd: got %+v, %v", r, err)
	}
}

// A run that fails because pfd ended has one error, which says so.
func TestRunDaemonEnds(t *testing.T) {
	q := fakeRequest(t, "ok")
	q.Count = 1 << 30
	d := &fakeDaemon{}
	r, err := Run(t.Context(), d.ends(t, &q), q)
	if !errors.Is(err, control.ErrEnded) || r.Error == nil || *r.Error != err.Error() || !regexp.MustCompile(`^pfd ended during transfer [1-9][0-9]* of 1073741824 \(status 10\)$|^pfd ended after transfer [1-9][0-9]* of 1073741824$`).MatchString(*r.Error) {
		t.Errorf("got %s, %v", deref(r.Error), err)
	}
}

// A result does not present counters that the user may not see, or that others share, as the
// run's own.
func TestRunCountsWhatItCan(t *testing.T) {
	for _, c := range []struct {
		name string
		d    fakeDaemon
		want string // faults, retransmissions, others, pinned
	}{
		{"who sees all", fakeDaemon{}, "45 45 0 0"},
		{"who does not see the counters", fakeDaemon{plain: true}, "45 - - 0"},
		{"other processes on the node", fakeDaemon{others: 2}, "45 45 2 0"},
		{"a domain that is not told", fakeDaemon{hidden: true}, "- 45 0 0"},
		{"a pfd that /proc does not show", fakeDaemon{pid: 1 << 30}, "45 45 0 -"},
	} {
		r, err := Run(t.Context(), &c.d, fakeRequest(t, "ok"))
		if got := fmt.Sprint(r.Faults, r.Retransmits, r.CountersOthers, r.PinnedBytes); got != c.want || err != nil {
			t.Errorf("%s: got %s, want %s, %v", c.name, got, c.want, err)
		}
	}
	// The data of a read comes from the target's node.
	q := fakeRequest(t, "ok")
	q.Read = true
	if r := newResult(&q); r.CountersNode != 1 || r.Retransmits.Known() {
		t.Errorf("a read: %+v", r)
	}
}

// The processes of a session have ended when Close returns.
func TestSessionLeavesNothing(t *testing.T) {
	s, err := Open(t.Context(), &fakeDaemon{}, fakeRequest(t, "ok").Options, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.one(Request{Size: 4096, Src: Present, Dst: Absent, Waiting: Wait, Timeout: time.Minute}, 0); err != nil {
		t.Error(err)
	}
	if s.initiator.pid() == s.target.pid() || s.initiator.pid() == os.Getpid() {
		t.Error("initiator and target are not processes of their own")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, p := range []*peer{s.initiator, s.target} {
		if p.cmd.ProcessState == nil || !p.cmd.ProcessState.Success() {
			t.Errorf("%s: %v", p.name, p.cmd.ProcessState)
		}
	}
}

func TestSummarize(t *testing.T) {
	hundred := make([]int64, 100)
	for i := range hundred {
		hundred[i] = int64(100-i) * 1000 // 100 us down to 1 us
	}
	no := maybe.Unknown()
	for _, c := range []struct {
		name string
		ns   []int64
		want Latency
	}{
		{"none", nil, Latency{no, no, no, no, no, no}},
		{"one", []int64{1500}, Latency{P50: 1.5, P90: no, P99: no, Mean: 1.5, Min: 1.5, Max: 1.5}},
		{"two", []int64{3000, 1000}, Latency{P50: 1, P90: no, P99: no, Mean: 2, Min: 1, Max: 3}},
		{"twenty", hundred[80:], Latency{P50: 10, P90: 18, P99: 20, Mean: 10.5, Min: 1, Max: 20}},
		{"a hundred", hundred, Latency{P50: 50, P90: 90, P99: 99, Mean: 50.5, Min: 1, Max: 100}},
	} {
		if got := summarize(slices.Clone(c.ns)); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
	if got := throughput(1000, []int64{500, 500}); got != 8 {
		t.Errorf("1000 bytes in 1000 ns: %v Gb/s, want 8", got)
	}
	if got := throughput(0, nil); got.Known() {
		t.Errorf("nothing: %v Gb/s, want none", got)
	}
}

func TestParseNames(t *testing.T) {
	for _, s := range states {
		if got, err := ParseState(string(s)); got != s || err != nil {
			t.Errorf("ParseState(%q): %q, %v", s, got, err)
		}
	}
	if _, err := ParseState("gone"); !errors.Is(err, ErrRequest) {
		t.Errorf("ParseState: %v", err)
	}
	for _, c := range []struct {
		word string
		size uint64
		want Waiting
	}{{"poll", 1 << 20, Poll}, {"wait", 1, Wait}, {"auto", 16384, Poll}, {"auto", 16385, Wait}} {
		w, err := ParseWaiting(c.word)
		if got := w.resolve(c.size); got != c.want || err != nil {
			t.Errorf("%s of %d: %s, %v", c.word, c.size, got, err)
		}
	}
	if _, err := ParseWaiting("spin"); !errors.Is(err, ErrRequest) {
		t.Errorf("ParseWaiting: %v", err)
	}
}
