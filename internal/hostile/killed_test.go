package hostile

import (
	"fmt"
	"hash/fnv"
	"os"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
)

// pfd is killed at each of its system calls of an attachment and of a transfer, one in each
// run, with each method. No process hangs, completed data stays, other data is old or new byte
// by byte, and everything works with the next pfd at the same path.
func TestPfdKilledAtEachCall(t *testing.T) {
	everywhere(t, func(t *testing.T, at place) {
		for _, method := range methods {
			t.Run(method, func(t *testing.T) { killedAtEachCall(t, method, at.args(t, nil)...) })
		}
	})
}

func killedAtEachCall(t *testing.T, method string, args ...string) {
	w, watcher := watched(t, args...)
	p := pair{w.spawn("initiator", 0), w.spawn("target", 0)}
	const size = 192 << 10
	attach := func(side *proxy, node uint32) bool {
		began := time.Now()
		r, err := side.do(order{Op: "attach", Attach: attachOrder{Socket: w.socket(), Node: node, Group: "killed", Method: method, Policy: "p4"}})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); r.Err != "" && took > hung {
			t.Errorf("attaching waited %v for a dead daemon: %s", took, r.Err)
		}
		return r.Err == ""
	}
	// A run returns the counts of its calls while processes attach and while they transfer. at
	// selects the phase in which pfd is killed.
	run := func(at, call string, nth int) (counts [2]map[string]int) {
		phase := func(name string) {
			switch {
			case name == at:
				watcher.ArmKill(call, nth)
			case !watcher.Hit():
				watcher.Arm("", 0, 0)
			}
		}
		phase("attach")
		attached := [2]bool{attach(p.from, 0), attach(p.to, 1)}
		counts[0] = watcher.Counts()
		all := attached[0] && attached[1]
		buffer := func(side *proxy, id string, seed uint64) (r reply) {
			if !all {
				return r
			}
			r, err := side.do(order{Op: "buffer", ID: id, Size: size, Seed: seed})
			if err != nil || r.Err != "" && !watcher.Hit() {
				t.Fatal(r.Err, err)
			}
			all = r.Err == "" // method uffd reports each to pfd
			return r
		}
		buffer(p.from, "src", 5)
		first, dst := buffer(p.to, "first", 0), buffer(p.to, "dst", 0)
		if all {
			r, err := p.from.do(order{Op: "write", ID: "first", Kind: "src", Remote: first.Remote, Size: size})
			if err != nil {
				t.Fatal(err)
			}
			arrived := r.Err == "" && p.from.wait("first").Done
			if !arrived && !watcher.Hit() {
				t.Errorf("the first transfer did not arrive although pfd was not killed yet: %s", r.Err)
			}
			phase("transfer")
			r, err = p.from.do(order{Op: "write", ID: "x", Kind: "src", Remote: dst.Remote, Size: size})
			if err != nil {
				t.Fatal(err)
			}
			if r.Err == "" {
				began := time.Now()
				r = p.from.wait("x")
				if took := time.Since(began); took > hung && watcher.Hit() {
					t.Errorf("the initiator waited %v for a dead daemon", took)
				}
				switch {
				case r.Done:
					p.to.holds("dst", 5, 0, size)
				case r.Code != device.StatusGone || !watcher.Hit():
					t.Errorf("%+v, killed %v: want code 10", r, watcher.Hit())
				default:
					p.to.must(order{Op: "either", ID: "dst", Seed: 5})
				}
			}
			counts[1] = watcher.Counts()
			if arrived {
				p.to.holds("first", 5, 0, size)
			}
		}
		for i, side := range []*proxy{p.from, p.to} {
			if !attached[i] {
				continue
			}
			if _, err := side.do(order{Op: "close"}); err != nil { // reports that pfd is gone
				t.Fatal(err)
			}
			side.must(order{Op: "drop"})
		}
		return counts
	}
	counts := run("", "", 0)
	killed := 0
	for i, at := range []string{"attach", "transfer"} {
		for _, c := range sysCalls() {
			for _, nth := range places(counts[i][c.Name], method+at+c.Name) {
				run(at, c.Name, nth)
				if watcher.Hit() {
					killed++
				}
				watcher = w.again(watcher)
				if t.Failed() {
					t.Fatalf("killed at call %d of %s, %s\n%s", nth, c.Name, at, w.stderr)
				}
			}
		}
	}
	run("", "", 0)
	p.kill()
	if killed == 0 {
		t.Error("pfd was never killed")
	}
	t.Logf("killed at %d calls", killed)
}

// places returns which of n calls to use: the first, one in the middle, and the last. Unless
// all are requested, it selects one of these, which changes daily.
func places(n int, name string) []int {
	if n == 0 {
		return nil
	}
	all := []int{1}
	if n > 2 {
		all = append(all, (n+1)/2)
	}
	if n > 1 {
		all = append(all, n)
	}
	seed := os.Getenv(sweepEnv)
	if seed == sweepAll || seed == sweepEvery {
		return all
	}
	if seed == "" {
		seed = time.Now().Format(time.DateOnly)
	}
	h := fnv.New64a()
	fmt.Fprint(h, seed, name)
	return []int{all[h.Sum64()%uint64(len(all))]}
}
