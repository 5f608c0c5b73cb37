package gsas_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gsas"
)

// A step is an operation on one value of up to four words.
type step struct {
	verb     string
	v        [4]uint64
	expected uint64
}

// histories are the kinds of values: the verbs that are used on one.
var histories = []struct {
	name  string
	verbs []string
}{
	{"register", []string{"load", "store", "swap"}},
	{"counter", []string{"add", "add", "load"}},
	{"lock", []string{"lock", "lock", "unlock"}},
	{"256 bits", []string{"load256", "store256", "compare256"}},
	{"mixed", []string{"load", "store", "add", "cas", "and", "or", "xor"}},
}

func (s step) do(ctx context.Context, t *gsas.Thread, a gsas.Address) (out [4]uint64, err error) {
	switch s.verb {
	case "load":
		out[0], err = t.Load64(ctx, a)
	case "store":
		err = t.Store64(ctx, a, s.v[0])
	case "swap":
		out[0], err = t.Swap(ctx, a, s.v[0])
	case "add":
		out[0], err = t.FetchAdd(ctx, a, s.v[0])
	case "and":
		out[0], err = t.FetchAnd(ctx, a, s.v[0])
	case "or":
		out[0], err = t.FetchOr(ctx, a, s.v[0])
	case "xor":
		out[0], err = t.FetchXor(ctx, a, s.v[0])
	case "cas":
		out[0], err = t.CompareSwap(ctx, a, s.expected, s.v[0])
	case "lock":
		out[0], err = t.CompareSwap(ctx, a, 0, s.v[0])
	case "unlock":
		out[0], err = t.CompareSwap(ctx, a, s.v[0], 0)
	case "load256":
		out, err = t.Load256(ctx, a)
	case "store256":
		err = t.Store256(ctx, a, s.v)
	case "compare256":
		out, err = t.CompareStore256(ctx, a, s.expected, s.v)
	}
	return out, err
}

// apply returns the next state of a value, and whether the step's result can be that of this state.
func (s step) apply(state, out [4]uint64) ([4]uint64, bool) {
	next := state
	ok := out[0] == state[0]
	switch s.verb {
	case "load":
	case "store":
		next[0], ok = s.v[0], true
	case "swap":
		next[0] = s.v[0]
	case "add":
		next[0] += s.v[0]
	case "and":
		next[0] &= s.v[0]
	case "or":
		next[0] |= s.v[0]
	case "xor":
		next[0] ^= s.v[0]
	case "cas":
		if state[0] == s.expected {
			next[0] = s.v[0]
		}
	case "lock":
		if state[0] == 0 {
			next[0] = s.v[0]
		}
	case "unlock":
		if state[0] == s.v[0] {
			next[0] = 0
		}
	case "load256":
		ok = out == state
	case "store256":
		next, ok = s.v, true
	case "compare256":
		ok = out == state
		if state[0] == s.expected {
			next = s.v
		}
	}
	return next, ok
}

var valueModel = porcupine.Model{
	Init: func() any { return [4]uint64{} },
	Step: func(state, in, out any) (bool, any) {
		next, ok := in.(step).apply(state.([4]uint64), out.([4]uint64))
		return ok, next
	},
}

// TestHistories: histories of four threads of two nodes on one value are linearizable: registers, counters,
// locks, values of 256 bits, and all operations on words; live, and with a link that loses messages.
func TestHistories(t *testing.T) {
	for _, k := range []struct {
		name  string
		make  maker
		count int
		loss  float64
	}{{"live", newRig, 1000, 0}, {"messages are lost", newRig, 10, 0.02}, {"vfio-user", newServedRig, 100, 0}} {
		t.Run(k.name, func(t *testing.T) {
			r := k.make(t, func(c *daemon.Config) { c.Link.Loss, c.Link.Seed = k.loss, 11 })
			ends := []device.NodeID{0, 1, 0, 1}
			threads := []*gsas.Thread{r.begin(0)}
			for _, n := range ends[1:] {
				threads = append(threads, r.join(n, threads[0]))
			}
			pages := []gsas.Address{r.alloc(threads[0], 0, 8, 0), r.alloc(threads[0], 1, 8, 0)}
			for n := range k.count {
				// Each history has a value of its own, which is zero: a place of 32 bytes.
				r.history(uint64(n), threads, pages[n%2]+gsas.Address(n/2)*32)
			}
		})
	}
}

func (r *rig) history(seed uint64, threads []*gsas.Thread, a gsas.Address) {
	r.Helper()
	kind := histories[seed%uint64(len(histories))]
	var mu sync.Mutex
	var all sync.WaitGroup
	var done []porcupine.Operation
	start := time.Now()
	for id, t := range threads {
		all.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(id)))
			for i := range 10 {
				v := uint64(id+1)<<8 | uint64(i)
				s := step{verb: kind.verbs[random.IntN(len(kind.verbs))], v: [4]uint64{v, ^v, v << 32, v}, expected: random.Uint64N(4)<<8 | random.Uint64N(10)}
				if kind.name == "lock" {
					s.v[0] = uint64(id + 1)
				}
				began := time.Since(start)
				out, err := s.do(r.Context(), t, a)
				if err != nil {
					r.Error(err)
					return
				}
				op := porcupine.Operation{ClientId: id, Input: s, Call: began.Nanoseconds(), Output: out, Return: time.Since(start).Nanoseconds()}
				mu.Lock()
				done = append(done, op)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if result := porcupine.CheckOperationsTimeout(valueModel, done, time.Minute); result != porcupine.Ok {
		r.Fatalf("history %d of %s: %v", seed, kind.name, result)
	}
}
