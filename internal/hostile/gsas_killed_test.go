package hostile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/rdma"
)

// pfd is killed at each of its system calls in the life of a tree, one in each run: as its threads begin, as
// pages come in, are freed and come again, and as it ends. Unless all are requested, a third of the calls is
// selected, which changes daily. No call hangs, what was added is there until
// then, and the next pfd at the same path gives new trees.
func TestPfdKilledAtEachCallOfATree(t *testing.T) {
	everywhere(t, func(t *testing.T, at place) { killedAtEachCallOfATree(t, at.args(t, nil)...) })
}

func killedAtEachCallOfATree(t *testing.T, args ...string) {
	w, watcher := watched(t, args...)
	run := func(call string, nth int) map[string]int {
		watcher.Arm("", 0, 0)
		if nth > 0 {
			watcher.ArmKill(call, nth)
		}
		ctx := w.ctx()
		if err := lifeOfATree(ctx, w.socket()); err != nil && (!watcher.Hit() || errors.Is(err, errSum) || ctx.Err() != nil) {
			t.Errorf("killed %v: %v", watcher.Hit(), err)
		}
		return watcher.Counts()
	}
	killed := 0
	counts := run("", 0)
	all := os.Getenv(sweepEnv) == sweepAll || os.Getenv(sweepEnv) == sweepEvery
	for i, c := range sysCalls() {
		if !all && (i+time.Now().YearDay())%3 != 0 {
			continue
		}
		for _, nth := range places(counts[c.Name], "tree"+c.Name) {
			if run(c.Name, nth); watcher.Hit() {
				killed++
			}
			watcher = w.again(watcher)
			if t.Failed() {
				t.Fatalf("killed at call %d of %s\n%s", nth, c.Name, w.stderr)
			}
		}
	}
	run("", 0)
	if killed == 0 {
		t.Error("pfd was never killed")
	}
	t.Logf("killed at %d calls", killed)
}

// again starts a pfd whose calls are watched in place of one that has probably been killed.
func (w *world) again(old *seamWatcher) *seamWatcher {
	w.t.Helper()
	_ = w.cmd.Process.Kill()
	<-w.ended
	w.cmd = nil
	old.Wait()
	watcher, ready, err := w.seamless()
	if err == nil {
		err = ready()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return watcher
}

var errSum = errors.New("a wrong sum")

// lifeOfATree makes a tree of two threads, adds to pages of both nodes, frees some and ends it.
func lifeOfATree(ctx context.Context, socket string) (err error) {
	var ends [2]*rdma.Endpoint
	for i := range ends {
		if ends[i], err = rdma.Attach(ctx, rdma.Options{Socket: socket, Node: device.NodeID(i), Threads: true}); err != nil {
			return err
		}
		defer ends[i].Close()
	}
	root, err := gsas.NewThread(ends[0])
	if err != nil {
		return err
	}
	other, err := gsas.Join(ends[1], root.Token())
	if err != nil {
		return err
	}
	for round := range 2 {
		for i, th := range []*gsas.Thread{root, other} {
			page, err := th.Alloc(ctx, device.NodeID(i), 2, 0)
			if err != nil {
				return err
			}
			for k := range uint64(6) {
				old, err := []*gsas.Thread{root, other}[k%2].FetchAdd(ctx, page+4096, 1)
				if err != nil {
					return err
				}
				if old != k {
					return fmt.Errorf("%w: addition %d to a page of node %d finds %d", errSum, k, i, old)
				}
			}
			if round == 0 {
				if err := th.Free(ctx, page); err != nil {
					return err
				}
			}
		}
	}
	return errors.Join(root.Close(), other.Close())
}
