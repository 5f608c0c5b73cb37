package hosts

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/rdma"
)

// adders are threads of a tree, one on each of two hosts, which add to a word on each.
type adders struct {
	hosts   [2]*host
	threads [2]*gsas.Thread  // on a host; the first one is the root
	words   [2]gsas.Address  // on a host
	done    [2]atomic.Uint64 // to a word
	doubted [2]atomic.Uint64 // to a word: not answered, and maybe done
	rounds  [2]atomic.Uint64 // of a thread
	errs    [2]error         // of a thread
	ending  atomic.Bool
	workers sync.WaitGroup
}

// newAdders makes a tree whose root is on host a.
func newAdders(ctx context.Context, t *testing.T, a, b *host) *adders {
	t.Helper()
	root := a.thread(gsas.Token{})
	d := &adders{hosts: [2]*host{a, b}, threads: [2]*gsas.Thread{root, b.thread(root.Token())}}
	for i, h := range d.hosts {
		var err error
		if d.words[i], err = root.Alloc(ctx, h.base, 1, 0); err != nil {
			t.Fatal(err)
		}
	}
	for i, th := range d.threads {
		d.workers.Go(func() {
			for !d.ending.Load() {
				for k, word := range d.words {
					_, err := th.FetchAdd(ctx, word, 1)
					if err == nil {
						d.done[k].Add(1)
						continue
					}
					d.doubted[k].Add(1)
					if !errors.Is(err, gsas.ErrGone) || errors.Is(err, rdma.ErrGone) || errors.Is(err, rdma.ErrTreeLost) {
						d.errs[i] = err
						return
					}
				}
				d.rounds[i].Add(1)
			}
		})
	}
	return d
}

// progress waits until each thread has added again.
func (d *adders) progress(t *testing.T) {
	t.Helper()
	for i := range d.rounds {
		goal := d.rounds[i].Load() + 1
		wait(t, "a thread adds", func() bool { return d.rounds[i].Load() >= goal || t.Failed() })
	}
}

// end ends the threads' work. Their errors are in errs.
func (d *adders) end() {
	d.ending.Store(true)
	d.workers.Wait()
}

// check fails the test if an addition to a word was lost, or done twice. The root reads the word.
func (d *adders) check(ctx context.Context, t *testing.T, word int) {
	t.Helper()
	done, doubted := d.done[word].Load(), d.doubted[word].Load()
	if v, err := d.threads[0].Load64(ctx, d.words[word]); err != nil || v < done || v > done+doubted {
		t.Errorf("the word on %s is %d, %v, want %d, and up to %d more", d.hosts[word].name, v, err, done, doubted)
	}
}

// work does writes, reads, messages and operations on a tree between two hosts, whose root is on the first
// one. Until stop is called none of them fails, and each is done once; an operation on the tree has no
// answer if its node does not answer for long.
func (c *cluster) work() (more, stop func()) {
	t := c.T
	ctx, cancel := context.WithCancel(t.Context())
	flows := c.flows(100 << 10)
	ended := load(t, flows...)
	adds := newAdders(ctx, t, c.hosts[0], c.hosts[1])
	var workers sync.WaitGroup
	for _, f := range flows {
		workers.Go(func() {
			err := lossyMessages(ctx, f, math.MaxInt)
			if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) { // ctx or its child's
				t.Errorf("%s: %v", f.name, err)
			}
		})
	}
	return func() {
			t.Helper()
			progress(t, 1, flows...)
			adds.progress(t)
		}, sync.OnceFunc(func() {
			ended()
			adds.end()
			for i := range adds.threads {
				if adds.errs[i] != nil {
					t.Errorf("the thread on %s: %v", names[i], adds.errs[i])
				}
				adds.check(ctx, t, i)
			}
			cancel()
			workers.Wait()
		})
}
