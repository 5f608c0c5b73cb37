package guests

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/internal/workload"
	"github.com/exanet/pfd/internal/workload/bench"
	"github.com/exanet/pfd/qemu"
	"github.com/exanet/pfd/qemu/agent"
)

// row describes successive transfers, each of its own part of fresh buffers; the first ones are
// not counted.
type row struct {
	size        uint64
	parts, cold int
	policy      string
}

var (
	small = row{4 << 10, 16, 4, "p1"}
	large = row{1 << 20, 4, 1, "pa"}
)

// figures has a list of times in ns for each name.
type figures map[string][]int64

func (f figures) add(name string, ns ...int64) { f[name] = append(f[name], ns...) }

func (f figures) median(name string) float64 {
	s := slices.Sorted(slices.Values(f[name]))
	return float64(s[(len(s)-1)/2]) / 1e3
}

func (f figures) last() map[string]int64 {
	all := map[string]int64{}
	for name, ns := range f {
		all[name] = ns[len(ns)-1]
	}
	return all
}

func (f figures) mean(name string) (us float64) {
	for _, ns := range f[name] {
		us += float64(ns) / 1e3 / float64(len(f[name]))
	}
	return us
}

// pair is an initiator and a target, with a warm-up.
type pair struct {
	from, to *process
	warm     string
}

// pair attaches processes to the two nodes of a guest's pfd.
func (f *fleet) pair(guest int, policy string) *pair {
	f.t.Helper()
	p := &pair{f.start(guest), f.start(guest), ""}
	var nodes struct {
		Nodes []struct {
			NodeID uint32 `json:"node_id"`
		}
	}
	f.answer(guest, &nodes, "node")
	for i, e := range []*process{p.from, p.to} {
		e.do(object{"op": "attach", "attach": object{"socket": "/run/exanet/pfd.sock", "node_id": nodes.Nodes[i].NodeID, "group": "pair-" + policy, "method": "gup", "policy": policy}})
	}
	warm := object{"op": "prepare", "buffer": workload.MaxParallel, "prepare": object{"state": "present", "size": 16}}
	p.from.do(warm)
	p.warm = p.to.do(warm).Remote
	return p
}

func (p *pair) close() { p.from.close(); p.to.close() }

// transfers runs a row and returns the time of each transfer in ns.
func (p *pair) transfers(t testing.TB, r row, state string, seed int) []int64 {
	t.Helper()
	size := r.size * uint64(r.parts)
	p.from.do(object{"op": "prepare", "prepare": object{"state": "present", "size": size, "seed": seed}})
	remote := p.to.do(object{"op": "prepare", "prepare": object{"state": state, "size": size, "seed": seed + 1}}).Remote
	ns := p.from.write(t, remote, r.parts, object{"waiting": "poll", "timeout_ns": patience.Nanoseconds(), "warm": p.warm, "warm_time_ns": 20e6})
	verify(t, p.to, object{"state": "present", "seed": seed}, size>>12)
	return ns[r.cold:]
}

// startPFD starts a pfd by the command line of launch, with the first nodes of a guest. It
// returns the addresses of all nodes.
func (f *fleet) startPFD(guest, all, nodes int, launch string, args ...string) []string {
	f.t.Helper()
	devices := strings.Fields(f.run(guest, "exanetctl", "bind", "--all", "--wait", fmt.Sprint(all)))
	f.run(guest, "sh", "-c", "ulimit -l unlimited; "+launch+" pfd --device vfio:"+strings.Join(devices[:nodes], ",")+" "+strings.Join(args, " ")+
		" >/run/pfd.log 2>&1 & until exanetctl status >/dev/null 2>&1; do kill -0 $! || { cat /run/pfd.log; exit 1; }; sleep 0.05; done")
	return devices
}

// BenchmarkGuests measures the figures of docs/benchmarks.md for a pfd in a guest. It writes
// them there if EXANET_DOCS names the directory.
func BenchmarkGuests(b *testing.B) {
	fig, accesses := figures{}, map[string]float64{}
	for range 3 {
		bootTime(b, fig)
	}
	f := boot(b, qemu.Options{Guests: 1, Nodes: 3, Server: server(b)})
	to := f.install(0)
	devices := f.startPFD(0, 3, 2, "", slow...)
	bare := f.lines(0, to, "bare-map", devices[2])
	p1, pa := f.pair(0, small.policy), f.pair(0, large.policy)
	const rounds = 12
	for i := range rounds + 1 {
		for n, state := range []string{"present", "absent"} {
			s, l := p1.transfers(b, small, state, 8*i+2*n), pa.transfers(b, large, state, 8*i+2*n+1)
			if i > 0 { // the first round is a warm-up
				fig.add("4 KiB "+state, s...)
				fig.add("1 MiB "+state, l...)
			}
		}
		var t bareTimes
		bare(&t)
		fig.add("map", t.Whole.Nanoseconds())
		fig.add("map by places", t.Places.Nanoseconds())
	}
	for _, state := range []string{"present", "absent"} {
		accesses[state] = f.accessesOf(p1, state)
	}
	bare(nil)
	p1.close()
	pa.close()
	us := fig.median
	text := fmt.Sprintf(`| in a guest (%s) | | asked for |
| --- | --- | --- |
| 4 KiB present, absent (gup, p1) | %.0f us, %.0f us | |
| 4 KiB absent / present | %.2f | at most 2.5 |
| register accesses of a 4 KiB transfer, present, absent | %.2f, %.2f | absent: at most 3 |
| 1 MiB present, absent (gup, pa) | %.0f us, %.0f us | |
| the bare VFIO map of 256 absent pages, by one call, by 16 | %.0f us, %.0f us | |
| 1 MiB absent / (present + bare map), by one call, by 16 | %.2f, %.2f | at most 1.5 |
| from `+"`exanetctl qemu boot`"+` to a guest with pfd active | %.1f s (%.1f to %.1f) | 3 s |
`, f.accelerator(0), us("4 KiB present"), us("4 KiB absent"), us("4 KiB absent")/us("4 KiB present"), accesses["present"], accesses["absent"],
		us("1 MiB present"), us("1 MiB absent"), us("map"), us("map by places"),
		us("1 MiB absent")/(us("1 MiB present")+us("map")), us("1 MiB absent")/(us("1 MiB present")+us("map by places")),
		us("boot")/1e6, float64(slices.Min(fig["boot"]))/1e9, float64(slices.Max(fig["boot"]))/1e9)
	b.Log("\n" + text)
	if dir := os.Getenv("EXANET_DOCS"); dir != "" {
		if err := bench.Replace(filepath.Join(dir, "benchmarks.md"), "bench-guests", text); err != nil {
			b.Fatal(err)
		}
	}
}

// accessesOf returns the number of register accesses per transfer of 4 KiB, from the counts of
// the nodes' servers.
func (f *fleet) accessesOf(p *pair, state string) float64 {
	f.t.Helper()
	const parts = 64
	size := parts * small.size
	p.from.do(object{"op": "prepare", "prepare": object{"state": "present", "size": size, "seed": 1}})
	remote := p.to.do(object{"op": "prepare", "prepare": object{"state": state, "size": size, "seed": 2}}).Remote
	before := f.accesses(2)
	p.from.write(f.t, remote, parts, object{"waiting": "poll", "timeout_ns": time.Hour.Nanoseconds()})
	return float64(f.accesses(2)-before) / parts
}

// mostAccesses is the limit of TestRegisterAccesses. A transfer between unmapped buffers takes
// three: its doorbell, and one access to the command queue of each node, which also reports how
// far the event queue was read. On a starved host some are retried.
const mostAccesses = 3.25

// The guest waits while a register access is served, so a transfer of 4 KiB must make few.
func TestRegisterAccesses(t *testing.T) {
	f := boot(t, qemu.Options{Guests: 1, Nodes: 2, PFD: slow, Server: server(t)})
	p := f.pair(0, small.policy)
	defer p.close()
	present, absent := f.accessesOf(p, "present"), f.accessesOf(p, "absent")
	t.Logf("%.2f accesses a transfer to present memory, %.2f to absent memory; 3 are expected", present, absent)
	if absent > mostAccesses || present < 1 {
		t.Errorf("%.2f accesses a transfer to absent memory, want %v at most; %.2f to present memory", absent, mostAccesses, present)
	}
}

// accelerator returns how QEMU executes a guest's instructions.
func (f *fleet) accelerator(guest int) string {
	f.t.Helper()
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", f.GuestPID(guest)))
	if err != nil {
		f.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(line), "-accel\x00")
	name, _, _ := strings.Cut(rest, "\x00")
	return name
}

// bootTime measures exanetctl qemu boot.
func bootTime(b *testing.B, fig figures) {
	usable(b)
	dir, err := os.MkdirTemp("", "exanet-")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	command := func(args ...string) {
		args = append([]string{"qemu", "--cache", cache.Dir, "--dir", filepath.Join(dir, "run")}, args...)
		if out, err := exec.CommandContext(b.Context(), filepath.Join(bin, "exanetctl"), args...).CombinedOutput(); err != nil {
			b.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	began := time.Now()
	command("boot", "--guests", "1", "--nodes", "2")
	fig.add("boot", time.Since(began).Nanoseconds())
	command("stop")
}

// lines starts a program in a guest that answers each line with a line of JSON. The returned
// function asks; nil ends the program.
func (f *fleet) lines(guest int, args ...string) func(answer any) {
	f.t.Helper()
	orders, in := io.Pipe()
	out, replies := io.Pipe()
	over := make(chan error, 1)
	go func() {
		code, err := f.Run(context.WithoutCancel(f.t.Context()), guest, agent.Command{Exec: agent.Exec{Args: args}, Stdin: orders, Stdout: replies, Stderr: replies})
		_ = replies.CloseWithError(fmt.Errorf("the program has ended: exit code %d, %w", code, err))
		over <- err
	}()
	r := bufio.NewReader(out)
	return func(answer any) {
		f.t.Helper()
		if answer == nil {
			_ = in.Close()
			if err := <-over; err != nil {
				f.t.Error(err)
			}
			return
		}
		_, err := in.Write([]byte{'\n'})
		var line []byte
		if err == nil {
			line, err = r.ReadBytes('\n')
		}
		if err == nil {
			err = json.Unmarshal(line, answer)
		}
		if err != nil {
			f.t.Fatalf("%q: %v: %s", args, err, line)
		}
	}
}
