// Phases has workers on two nodes that meet at a barrier after each phase, and count under a lock. Both
// are words of the global shared address space.
//
//	phases [-socket PATH] [-workers N] [-phases N]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"sync"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/rdma"
)

// lock is a word: 0, or the id of the thread that holds it.
type lock struct{ word gsas.Address }

func (l lock) acquire(ctx context.Context, t *gsas.Thread) error {
	for {
		old, err := t.CompareSwap(ctx, l.word, 0, uint64(t.ID()))
		if err != nil || old == 0 {
			return err
		}
	}
}

func (l lock) release(ctx context.Context, t *gsas.Thread) error {
	return t.Store64(ctx, l.word, 0)
}

// barrier is a word that counts arrivals. The last of n opens it for all.
type barrier struct {
	word gsas.Address
	n    uint64
}

func (b barrier) wait(ctx context.Context, t *gsas.Thread) error {
	arrived, err := t.FetchAdd(ctx, b.word, 1)
	for open := arrived/b.n*b.n + b.n; err == nil && arrived < open; {
		if arrived, err = t.Load64(ctx, b.word); arrived >= open {
			break
		}
	}
	return err
}

// The words, from the address of the page on. Each is in a cache line of its own.
const (
	lockAt    = 0
	barrierAt = 64
	sumAt     = 128
)

func main() {
	log.SetFlags(0)
	socket := flag.String("socket", "", "pfd's control socket; empty: the default one")
	workers := flag.Int("workers", 4, "workers, on two nodes in turns, at most 16")
	phases := flag.Int("phases", 20, "phases")
	flag.Parse()
	sum, err := run(context.Background(), *socket, *workers, *phases)
	if err != nil {
		log.Fatalf("phases: %v", err)
	}
	fmt.Printf("%d workers, %d phases, sum %d\n", *workers, *phases, sum)
}

func run(ctx context.Context, socket string, workers, phases int) (sum uint64, err error) {
	var eps [2]*rdma.Endpoint
	for i := range eps {
		if eps[i], err = rdma.Attach(ctx, rdma.Options{Socket: socket, Node: device.NodeID(i), Threads: true}); err != nil {
			return 0, err
		}
		defer eps[i].Close()
	}
	root, err := gsas.NewThread(eps[0])
	if err != nil {
		return 0, err
	}
	page, err := root.Alloc(ctx, 0, 1, 0)
	if err != nil {
		return 0, err
	}
	threads := []*gsas.Thread{root}
	for len(threads) < workers {
		t, err := gsas.Join(eps[len(threads)%2], root.Token())
		if err != nil {
			return 0, err
		}
		threads = append(threads, t)
	}
	errs := make([]error, len(threads))
	var all sync.WaitGroup
	for i, t := range threads {
		all.Go(func() { errs[i] = work(ctx, t, page, uint64(workers), phases) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	return root.Load64(ctx, page+sumAt)
}

// work adds 1 to the sum in each phase, by a load and a store that only the lock makes one, and checks at
// the barrier that every worker has.
func work(ctx context.Context, t *gsas.Thread, page gsas.Address, workers uint64, phases int) error {
	l, b := lock{page + lockAt}, barrier{page + barrierAt, workers}
	for phase := range uint64(phases) {
		if err := l.acquire(ctx, t); err != nil {
			return err
		}
		sum, err := t.Load64(ctx, page+sumAt)
		if err == nil {
			err = t.Store64(ctx, page+sumAt, sum+1)
		}
		if err = errors.Join(err, l.release(ctx, t)); err != nil {
			return err
		}
		if err := b.wait(ctx, t); err != nil {
			return err
		}
		if sum, err = t.Load64(ctx, page+sumAt); err != nil || sum != (phase+1)*workers {
			return errors.Join(err, fmt.Errorf("the sum is %d after phase %d, not %d", sum, phase, (phase+1)*workers))
		}
		if err := b.wait(ctx, t); err != nil { // nobody begins the next phase before all have looked
			return err
		}
	}
	return nil
}
