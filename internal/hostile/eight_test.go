package hostile

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
)

// Limits of what a victim may suffer. Values below are defined by this project.
const (
	attackFactor = 10 // times the p99 beside CPU burners
	attackWorst  = 100 * time.Millisecond
)

// Users of the attack: uids that are not in use.
const (
	attackerUID = 60001 // and those after it
	victimUID   = 60101
	latecomer   = 60102
)

// aggressor is one attacker of a test, with the number of slots of a node that it uses.
type aggressor struct {
	kind  string
	slots uint64
}

// eight are the eight attackers; the one with slow memory has two kinds. With two victims they
// leave one slot of each node free.
var eight = []aggressor{
	{"http", 0}, {"connections", 0}, {"punch", 1}, {"fuse", 1}, {"uffd", 2},
	{"ids", 4}, {"contexts", 4}, {"linger", 0}, {"cycles", 1},
}

// holding counts pfd's resources, from the kernel.
type holding struct {
	threads, descriptors int
	goroutines           int
	heap, rss            int // KiB; heap is the live heap if pfd collects garbage often
}

// left reports whether an attack has left descriptors or goroutines behind. The engine's
// threads for calls that may sleep, each with a goroutine, do not count.
func (h holding) left(before holding) bool {
	return h.descriptors > before.descriptors || h.goroutines > before.goroutines+spareThreads
}

// grown reports whether threads or memory are more than after an earlier attack. The Go runtime
// keeps as many threads as calls slept at one time, and pfd keeps memory that it needed once:
// both grow with the first attacks, but not with each one.
func (h holding) grown(before holding) bool {
	return h.threads > before.threads || h.heap > before.heap
}

// Parameters of the search for leaks. Values below are defined by this project.
const (
	attacks      = 24          // pfd's pools reach their largest size within about this many
	attackTime   = time.Second // of each
	spareThreads = 2           // emu.spareThreads
	collects     = 30          // queries that make pfd collect its garbage
)

// settled returns pfd's resources after pfd has closed what it closes.
func (w *world) settled(before holding) holding {
	w.t.Helper()
	w.deserted()
	h := w.holds()
	for deadline := time.Now().Add(patience); h.left(before) && time.Now().Before(deadline); h = w.holds() {
		time.Sleep(100 * time.Millisecond)
	}
	if h.left(before) {
		w.t.Errorf("pfd holds more than before the attack: %v, then %v", before, h)
	}
	return h
}

func (h holding) String() string {
	return fmt.Sprintf("%d threads, %d descriptors, %d goroutines, %d KiB of %d KiB live", h.threads, h.descriptors, h.goroutines, h.rss, h.heap)
}

func (w *world) holds() (h holding) {
	w.t.Helper()
	h.goroutines = int(w.metric("go_goroutines")) // first: the query uses a descriptor
	// The heap grows to a multiple before the next collection. The queries create garbage.
	for range collects {
		h.heap = int(w.metric("go_memstats_next_gc_bytes") >> 10)
	}
	proc := fmt.Sprintf("/proc/%d/", w.cmd.Process.Pid)
	text, err := os.ReadFile(proc + "status")
	if err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		switch key {
		case "Threads":
			_, err = fmt.Sscan(value, &h.threads)
		case "VmRSS":
			_, err = fmt.Sscan(value, &h.rss)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	list, err := os.ReadDir(proc + "fd")
	if err != nil {
		w.t.Fatal(err)
	}
	h.descriptors = len(list)
	return h
}

// assault starts attackers, each as its own user and on at most one processor. end stops them
// and returns how many actions each completed. A dying process may take long to release its
// memory; reap waits for that.
func (w *world) assault(reap *sync.WaitGroup, list []aggressor) (end func() string) {
	w.t.Helper()
	var all []*proxy
	for i, a := range list {
		var files []*os.File
		path := ""
		switch a.kind {
		case "fuse":
			dir, err := os.MkdirTemp(w.dir, "f")
			if err == nil {
				err = os.Chmod(dir, 0o755)
			}
			if err != nil {
				w.t.Fatal(err)
			}
			path = hangingFile(w.t, dir)
		case "uffd", "ids":
			// As on a machine whose administrator permits it to users.
			f, err := os.OpenFile("/dev/userfaultfd", os.O_RDWR, 0)
			if err != nil {
				w.t.Skipf("no /dev/userfaultfd: %v", err)
			}
			defer f.Close()
			files = append(files, f)
		}
		p := w.spawnWith(a.kind, attackerUID+uint32(i), files, "GOMAXPROCS=1")
		p.must(order{Op: "attack", Kind: a.kind, Size: a.slots, Path: path, Attach: attachOrder{Socket: w.socket()}})
		all = append(all, p)
	}
	for _, p := range all {
		begun := func() bool { return p.must(order{Op: "did"}).Count > 0 }
		for deadline := time.Now().Add(patience / 2); !begun(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				w.t.Errorf("attacker %s does nothing: %s", p.name, p.must(order{Op: "did"}).Text)
				break
			}
		}
	}
	return func() string {
		var did []string
		for _, p := range all {
			if r, err := p.do(order{Op: "did"}); err != nil || r.Text != "" || r.Count == 0 {
				w.t.Errorf("attacker %s did %d: %s, %v", p.name, r.Count, r.Text, err)
			} else {
				did = append(did, fmt.Sprint(p.name, " ", r.Count))
			}
			p.abandon(reap)
		}
		return strings.Join(did, ", ")
	}
}

// abandon kills a process and lets another goroutine wait for its end.
func (p *proxy) abandon(reap *sync.WaitGroup) {
	p.over = true
	_ = p.cmd.Process.Kill()
	_ = p.in.Close()
	reap.Go(func() { _ = p.cmd.Wait() })
}

// victim attaches a process to both nodes, which then makes checked transfers of 4 KiB one
// after the other into absent memory. It returns nil if the process could not attach.
func (w *world) victim(uid uint32) *bystander {
	w.t.Helper()
	p := w.spawn(fmt.Sprint("victim ", uid), uid)
	a := attachOrder{Socket: w.socket(), Group: fmt.Sprint("victim", uid), UID: uid}
	for _, o := range []order{{Op: "attach", Attach: a}, {Op: "burst", Attach: a, Size: 4096}} {
		if r, err := p.do(o); err != nil || r.Err != "" {
			w.t.Errorf("%s cannot attach: %v %s", p.name, err, r.Err)
			p.kill()
			return nil
		}
	}
	return &bystander{p}
}

// deserted waits until all slots but the first victim's are free. It fails the test if they do
// not become free or pfd does not answer.
func (w *world) deserted() {
	w.t.Helper()
	var list []control.Domain
	err := errSilent
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		ctx, cancel := within(patience / 10)
		list, err = w.Domains(ctx, control.AllNodes)
		cancel()
		if err == nil && len(list) == 2 {
			return
		}
	}
	w.t.Errorf("after an attack: %d slots in use, want 2; %v", len(list), err)
}

// account adds one row to the table: a victim's transfers over a period.
func (b *bystander) account(table *strings.Builder, when, who string) reply {
	b.t.Helper()
	r, err := b.do(order{Op: "account"})
	if err != nil || r.Err != "" || r.Text != "" || r.Wrong != 0 {
		b.t.Errorf("%s, %s: %d bytes wrong, %s %s %v", when, b.name, r.Wrong, r.Text, r.Err, err)
	}
	ms := func(ns int64) string { return fmt.Sprintf("%.2f", float64(ns)/1e6) }
	fmt.Fprintf(table, "| %s | %s | %d | %s | %s | %s |\n", when, who, r.Count, ms(r.P50), ms(r.P99), ms(r.Worst))
	return r
}

// besieged measures victims' transfers: alone, beside eight processes that only use processor
// time, and under the attack of list.
func besieged(t *testing.T, w *world, list []aggressor, during time.Duration) {
	t.Helper()
	needRoot(t, "attackers of several users need their processes")
	var table strings.Builder
	table.WriteString("| | victim | transfers | p50, ms | p99, ms | worst, ms |\n| --- | --- | --- | --- | --- | --- |\n")
	var machine strings.Builder
	machine.WriteString("| the machine | real-time thread late by, ms | plain thread late by, ms | steal, ms |\n| --- | --- | --- | --- |\n")
	canary := watchMachine(t)
	defer func() { t.Logf("\n%s\n%s", &table, &machine) }()
	// Ending the processes may have to wait for the end of the file system.
	var reap sync.WaitGroup
	t.Cleanup(reap.Wait)
	first := w.victim(victimUID)
	if first == nil {
		return
	}
	first.some()
	first.must(order{Op: "account"})
	canary.account("")
	time.Sleep(during / 6)
	first.account(&table, "quiet", "first")
	machine.WriteString(canary.account("quiet"))

	burners := make([]aggressor, 8)
	for i := range burners {
		burners[i].kind = "burn"
	}
	end := w.assault(&reap, burners)
	first.must(order{Op: "account"})
	canary.account("")
	time.Sleep(during / 3)
	plain := first.account(&table, fmt.Sprint(len(burners), " burners"), "first")
	machine.WriteString(canary.account("burners"))
	end()

	// Attack once before, so that pfd reaches its working size.
	before := w.holds()

	end = w.assault(&reap, list)
	first.must(order{Op: "account"})
	canary.account("")
	time.Sleep(during / 10)
	second := w.victim(latecomer)
	time.Sleep(during - during/10)
	when := "attack"
	under := map[string]reply{"first": first.account(&table, when, "first")}
	if second != nil {
		under["latecomer"] = second.account(&table, when, "latecomer")
	}
	machine.WriteString(canary.account(when))
	did := end()
	if second != nil {
		second.must(order{Op: "stop"})
		second.kill()
	}
	after := w.settled(before)
	fmt.Fprintf(&table, "\nThe attackers did: %s.\npfd before: %v; after: %v.\n", did, before, after)
	for who, r := range under {
		report := t.Errorf
		if os.Getenv("PFD_ATTACK") == "" {
			report = t.Logf // times of a busy machine mean little
		}
		if p99 := time.Duration(r.P99); r.P99 > attackFactor*plain.P99 {
			report("the %s victim's p99 is %v under attack, with burners %v: more than %dx", who, p99, time.Duration(plain.P99), attackFactor)
		}
		if worst := time.Duration(r.Worst); worst > attackWorst {
			report("the %s victim's worst transfer took %v, at most %v", who, worst, attackWorst)
		}
	}
	first.fine()
}

// Eight attackers at once, each its own user, stop no other process, and delay others no more
// than their use of the processors does. Times are asserted only if PFD_ATTACK states the
// duration of the attack (30s), on an idle machine.
func TestEightAttackers(t *testing.T) {
	during := 5 * time.Second
	if v := os.Getenv("PFD_ATTACK"); v != "" {
		var err error
		if during, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	besieged(t, start(t), eight, during)
}

// Attacks leave nothing behind: descriptors and goroutines return to their numbers, and threads
// and live memory grow only with the first attacks. This pfd collects garbage often, so that
// its heap is the live heap.
func TestAttacksLeaveNothing(t *testing.T) {
	needRoot(t, "attackers of several users need their processes")
	w := startAs(t, pfdProgram, []string{"GOGC=5"})
	var reap sync.WaitGroup
	t.Cleanup(reap.Wait)
	first := w.victim(victimUID)
	if first == nil {
		return
	}
	first.some()
	now := w.holds()
	history := []holding{now}
	leaks := true
	for range attacks {
		end := w.assault(&reap, eight)
		time.Sleep(attackTime)
		end()
		before := now
		now = w.settled(before)
		history = append(history, now)
		if len(history) > 2 && !now.grown(before) {
			leaks = false
			break
		}
	}
	t.Log(history)
	if leaks {
		t.Errorf("pfd holds more after each of %d attacks: %v", attacks, history)
	}
	first.fine()
}

// The same for each attacker alone. Attackers that take slots are two users, who take all slots
// that the victims leave.
func TestEachAttacker(t *testing.T) {
	for _, a := range eight {
		t.Run(a.kind, func(t *testing.T) {
			list := []aggressor{a}
			if a.slots > 1 || a.kind == "fuse" || a.kind == "cycles" {
				list = []aggressor{{a.kind, 7}, {a.kind, 7}}
			}
			besieged(t, start(t), list, time.Second)
		})
	}
}
