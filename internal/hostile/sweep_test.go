package hostile

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/deploy"
)

// Settings of the sweep. PFD_FAULTPOINTS=every makes every call fail with every error.
// PFD_FAULTPOINTS=all (make faultpoints) does the same for an emulated device; with a device
// behind a socket, where each register access is two calls, it takes sweepSpread calls of each
// kind, with the first and the last. Otherwise some calls fail: those selected by
// PFD_FAULTPOINTS=SEED, and without it the same ones in each run, so that a result depends on
// the tested change, not on the day.
const (
	sweepEnv      = "PFD_FAULTPOINTS"
	sweepEvery    = "every"
	sweepAll      = "all"
	sweepSeed     = "1"
	sweepSome     = 30 // failures of a part, if only some are made
	sweepMediated = 10 // the same with a device behind a socket, where each takes longer
	sweepSpread   = 25
)

// seamless starts pfd under a watcher of its system calls.
func (w *world) seamless() (*seamWatcher, func() error, error) {
	path, err := self()
	if err != nil {
		return nil, nil, err
	}
	old := slices.Clone(w.args)
	w.args = append([]string{path}, old...)
	env := w.env
	w.env = append(slices.Clone(env), agentEnv+"=seam")
	ready, err := w.launch()
	w.args, w.env = old, env
	if err != nil {
		return nil, nil, err
	}
	watcher, err := seamWatch(w.cmd.Process.Pid)
	return watcher, ready, err
}

// sweeper performs one part of the sweep.
type sweeper struct {
	t            *testing.T
	seed         string
	points, runs int            // calls of a round; failures made
	failures     int            // calls by errors
	seen         map[string]int // reported errors, by their first words
}

func newSweeper(t *testing.T) *sweeper {
	s := &sweeper{t: t, seed: os.Getenv(sweepEnv), seen: map[string]int{}}
	if s.seed == "" {
		s.seed = sweepSeed
	}
	return s
}

// item is one failure.
type item struct {
	call  string
	nth   int
	errno syscall.Errno
}

func (i item) String() string {
	return fmt.Sprintf("call %d of %s fails with %v", i.nth, i.call, i.errno)
}

// items returns the failures to make for calls with these counts: all, or some.
func (s *sweeper) items(counts map[string]int, part string) []item {
	var list []item
	some, spread := sweepSome, 0
	if strings.Contains(part, "mediated") {
		if some = sweepMediated; s.seed == sweepAll {
			spread = sweepSpread
		}
	}
	for _, c := range sysCalls() {
		n := counts[c.Name]
		s.points += n
		s.failures += n * len(c.Errnos)
		for k := 1; k <= n; k++ {
			nth := k
			if spread != 0 && n > spread {
				if k > spread {
					break
				}
				nth = 1 + (k-1)*(n-1)/(spread-1)
			}
			for _, e := range c.Errnos {
				list = append(list, item{c.Name, nth, e})
			}
		}
	}
	if s.seed == sweepAll || s.seed == sweepEvery {
		return list
	}
	order := func(i item) uint64 {
		h := fnv.New64a()
		fmt.Fprint(h, s.seed, part, i)
		return h.Sum64()
	}
	slices.SortFunc(list, func(a, b item) int { return cmp.Compare(order(a), order(b)) })
	return list[:min(len(list), some)]
}

func (s *sweeper) report(part string) {
	s.t.Logf("%s: %d calls, %d failures possible, %d made (%s=%s)", part, s.points, s.failures, s.runs, sweepEnv, s.seed)
	for _, k := range slices.Sorted(func(yield func(string) bool) {
		for k := range s.seen {
			if !yield(k) {
				return
			}
		}
	}) {
		s.t.Logf("%5d %s", s.seen[k], k)
	}
}

// Every system call of pfd, from its start to its end, fails once in turn, with each error that
// matters, whatever part of pfd makes it. Then pfd does not start and prints one line with the
// reason, or refuses an attachment with a reason, or fails a transfer with its code, or shows
// no effect. Afterwards everything works, byte for byte, and pfd exits normally.
func TestEverySystemCallFailsOnce(t *testing.T) {
	for _, method := range methods {
		t.Run("serving/"+method, func(t *testing.T) { sweepServing(t, method, method) })
	}
	t.Run("starting/emu", func(t *testing.T) { sweepStarting(t, "starting") })
	t.Run("stopping/emu", func(t *testing.T) { sweepStarting(t, "stopping") })
	// The nodes in another process: package mediate, shadow tables, the vfio-user client.
	for _, d := range deploy.Devices() {
		if args := (place{d}).args; d.Shared {
			t.Run("serving/mediated", func(t *testing.T) { sweepServing(t, "mediated", "gup", args(t, nil)...) })
			t.Run("starting/mediated", func(t *testing.T) { sweepStarting(t, "starting mediated", args(t, nil)...) })
			t.Run("stopping/mediated", func(t *testing.T) { sweepStarting(t, "stopping mediated", args(t, nil)...) })
		}
	}
}

// watched starts a pfd under a watcher.
func watched(t *testing.T, args ...string) (*world, *seamWatcher) {
	t.Helper()
	// Short time-outs, so that a recovery by time-out comes soon.
	w := prepareAs(t, pfdProgram, nil, append([]string{"--guard-us", "5000", "--timeout-us", "5000"}, args...)...)
	watcher, ready, err := w.seamless()
	if errors.Is(err, errNoSeam) {
		t.Skip(err)
	}
	if err == nil {
		err = ready()
	}
	if err != nil {
		t.Fatal(err)
	}
	return w, watcher
}

func sweepServing(t *testing.T, part, method string, args ...string) {
	s := newSweeper(t)
	w, watcher := watched(t, args...)
	p := pair{w.spawn("initiator", 0), w.spawn("target", 0)}
	never := func() bool { return false }
	// Two rounds: what pfd does only once, in the first, belongs to its start.
	w.round(p, method, never)
	watcher.Arm("", 0, 0)
	w.round(p, method, never)
	before := w.descriptors()
	var doing item
	late := false
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(doing)
		}
	})
	for _, i := range s.items(watcher.Counts(), "serving "+part) {
		doing = i
		watcher.Arm(i.call, i.nth, i.errno)
		told := w.round(p, method, func() bool { return late || watcher.Hit() })
		// The loss of a device at the end of a round shows in the next one.
		late = watcher.Hit() && len(told) == 0
		for _, e := range told {
			s.seen[e]++
			t.Logf("%v: %s", i, e)
		}
		if watcher.Hit() {
			s.runs++
		}
		if t.Failed() {
			t.Fatalf("%v\n%s", i, w.stderr)
		}
	}
	watcher.Arm("", 0, 0)
	w.round(p, method, func() bool { return late })
	p.kill()
	w.until("no domain is left", func() bool { return w.domains() == 0 })
	// One more is the copy of pfd's program, made when a process first needs a helper because a
	// call that pfd makes itself was refused.
	w.until("no descriptor is left", func() bool { return w.descriptors() <= before+1 })
	if s.runs == 0 {
		t.Error("no call was made to fail")
	}
	s.report(part)
}

// descriptors returns how many descriptors pfd has open.
func (w *world) descriptors() int {
	w.t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.cmd.Process.Pid))
	if err != nil {
		w.t.Fatal(err)
	}
	return len(list)
}

// round attaches two processes, makes transfers, rings and a window, and detaches. Each error must be due to the
// injected failure, and must occur only once. round returns the reported errors.
func (w *world) round(p pair, method string, hit func() bool) (told []string) {
	const size = 40 << 10
	tell := func(what, text string) {
		if !hit() {
			w.t.Errorf("%s: %s, but no call has failed", what, text)
		}
		if r := what + ": " + reason(text); !slices.Contains(told, r) {
			told = append(told, r)
		}
		if len(told) > 5 {
			w.t.Fatalf("%q: want one error for one call\n%s", told, w.stderr)
		}
	}
	// After the end of an established attachment the rest of the round is skipped.
	broken := false
	do := func(side *proxy, what string, o order) reply {
		// pfd reconnects to a lost device after a while.
		for deadline := time.Now().Add(patience); !broken && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			r, err := side.do(o)
			if err != nil {
				w.t.Fatalf("%s: %v\n%s", what, err, w.stderr)
			}
			if r.Err == "" {
				return r
			}
			tell(what, r.Err)
			broken = o.Op != "attach"
		}
		if !broken {
			w.t.Fatalf("%s never succeeds\n%s", what, w.stderr)
		}
		return reply{}
	}
	attach := func() {
		for node, side := range []*proxy{p.from, p.to} {
			do(side, "attaching", order{Op: "attach", Attach: attachOrder{Socket: w.socket(), Node: uint32(node), Group: "sweep", Method: method, Policy: "p4"}})
		}
	}
	detach := func() {
		for _, side := range []*proxy{p.from, p.to} {
			if r, err := side.do(order{Op: "close"}); err != nil || r.Err != "" {
				tell("detaching", fmt.Sprint(r.Err, err))
			}
			side.must(order{Op: "drop"})
		}
	}
	attach()
	do(p.from, "a buffer", order{Op: "buffer", ID: "src", Size: size, Seed: 5})
	do(p.from, "a buffer", order{Op: "buffer", ID: "empty", Size: size})
	for i, src := range []string{"src", "empty", "src"} {
		id, dst := fmt.Sprint(i), fmt.Sprint("dst", i)
		m := do(p.to, "a buffer", order{Op: "buffer", ID: dst, Size: size})
		do(p.from, "a transfer", order{Op: "write", ID: id, Kind: src, Remote: m.Remote, Size: size})
		r := do(p.from, "a transfer", order{Op: "wait", ID: id})
		seed := uint64(5)
		if src == "empty" {
			seed = 0
		}
		switch {
		case broken:
		case r.Done:
			p.to.holds(dst, seed, 0, size)
		case r.Code == 0 || r.Text == "":
			w.t.Errorf("no reason: %+v", r)
		default:
			tell("a transfer", fmt.Sprintf("code %d", r.Code))
			p.to.must(order{Op: "either", ID: dst, Seed: seed})
		}
	}
	words := do(p.to, "a buffer", order{Op: "buffer", ID: "words", Size: 4 << 10, Seed: 7})
	do(p.to, "a ring", order{Op: "ring", ID: "words"})
	do(p.to, "a window", order{Op: "window", ID: "words"})
	for n := range uint64(2) {
		do(p.from, "a notification", order{Op: "notify", Kind: "src", Remote: words.Remote, Seed: 1 + n})
		do(p.to, "a wait on rings", order{Op: "notified", ID: "words", Seed: 1 + n})
	}
	do(p.to, "a window", order{Op: "unwindow"})
	do(p.to, "a ring", order{Op: "unring"})
	if _, err := w.Status(w.ctx()); err != nil {
		tell("status", err.Error())
		if _, err := w.Status(w.ctx()); err != nil {
			w.t.Errorf("status again: %v", err)
		}
	}
	detach()
	if hit() {
		// A lost device is back before the next round.
		broken = false
		attach()
		detach()
	}
	w.until("both slots are free", func() bool {
		list, err := w.Domains(w.ctx(), control.AllNodes)
		if err != nil {
			tell("domains", err.Error())
		}
		return err == nil && len(list) == 0
	})
	return told
}

// reason returns a text without its numbers.
func reason(text string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return '#'
		}
		return r
	}, text[:min(len(text), 90)])
}

// sweepStarting makes the calls fail that pfd makes until it is ready, or (stopping) those
// after SIGTERM.
func sweepStarting(t *testing.T, part string, args ...string) {
	s, start := newSweeper(t), strings.HasPrefix(part, "starting")
	w, watcher := watched(t, args...)
	if !start {
		watcher.Arm("", 0, 0)
		w.stop()
		watcher.Wait()
	}
	counts := watcher.Counts()
	w.stop()
	for _, i := range s.items(counts, part) {
		w := prepareAs(t, pfdProgram, nil, args...)
		watcher, ready, err := w.seamless()
		if err != nil {
			t.Fatal(err)
		}
		// The wait for READY is one more wait for pfd.
		go func() { _ = ready() }()
		if start {
			watcher.Arm(i.call, i.nth, i.errno)
		}
		if !w.answers() {
			s.seen["does not start: "+s.refused(w, i, watcher.Hit())]++
		} else {
			if !start {
				watcher.Arm(i.call, i.nth, i.errno)
			}
			if _, err := w.Status(w.ctx()); err != nil && !watcher.Hit() {
				t.Errorf("%v: status: %v", i, err)
			}
			w.stop()
		}
		watcher.Wait()
		if watcher.Hit() {
			s.runs++
		}
		if err := os.RemoveAll(w.dir); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Fatalf("%v\n%s", i, w.stderr)
		}
	}
	if s.runs == 0 {
		t.Error("no call was made to fail")
	}
	s.report(part)
}

// answers waits until pfd answers. It returns false if pfd has ended.
func (w *world) answers() bool {
	answers := false
	w.until("pfd answers or ends", func() bool {
		_, err := w.Status(w.ctx())
		answers = err == nil
		return answers || len(w.ended) > 0
	})
	return answers
}

// refused checks the end of a pfd that did not start: a normal exit with a reason. The Go
// runtime reports its own failures in its own words.
func (s *sweeper) refused(w *world, i item, hit bool) string {
	exit := <-w.ended
	w.cmd = nil
	text := w.stderr.String()
	var code *exec.ExitError
	switch {
	case !hit, !errors.As(exit, &code):
		s.t.Errorf("%v: pfd does not start: %v\n%s", i, exit, text)
	case code.ExitCode() == 2 && strings.Contains(text, "fatal error: runtime: "):
		return "the Go runtime"
	case code.ExitCode() != 1 || strings.Count(text, "pfd: ") != 1:
		s.t.Errorf("%v: pfd ends with %v, but not with one line\n%s", i, exit, text)
	}
	_, line, _ := strings.Cut(text, "pfd: ")
	return reason(line)
}
