package emu_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/sim"
	"github.com/exanet/pfd/soc/record"
)

// lineOp is an operation on a line of four words.
type lineOp struct {
	line int
	word int
	op   atomics.Op
	args [atomics.MaxArgs]uint64
}

// lines is memory of lines, each of which is checked alone.
var lines = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := map[int][]porcupine.Operation{}
		for _, o := range history {
			parts[o.Input.(lineOp).line] = append(parts[o.Input.(lineOp).line], o)
		}
		var list [][]porcupine.Operation
		for _, p := range parts {
			list = append(list, p)
		}
		return list
	},
	Init: func() any { return [atomics.MaxValues]uint64{} },
	Step: func(state, input, output any) (bool, any) {
		m, in := state.([atomics.MaxValues]uint64), input.(lineOp)
		var words [atomics.MaxValues]uint64
		copy(words[:], m[in.word:])
		values := in.op.Apply(&words, &in.args)
		copy(m[in.word:], words[:in.op.Bytes()/8])
		return values == output.([atomics.MaxValues]uint64), m
	},
}

// Histories of operations of all widths by threads on two nodes on a few words are linearizable:
// registers, counters, locks by compare and swap, and lines of 256 bits. PFD_HISTORIES is their number.
func TestLinearizable(t *testing.T) {
	histories := 20
	if n, err := strconv.Atoi(os.Getenv("PFD_HISTORIES")); err == nil {
		histories = n
	}
	const clients, rounds, lineCount = 4, 25, 2
	var all []atomics.Op
	for op := range atomics.Op(255) {
		if op.Memory() {
			all = append(all, op)
		}
	}
	r := newRig(t, fault.PIO)
	r.forest(1, histories)
	var threads []*fellow
	for i := range clients {
		threads = append(threads, r.thread(i%2, i, tree))
	}
	for h := range histories {
		var mu sync.Mutex
		var history []porcupine.Operation
		var wg sync.WaitGroup
		began := time.Now()
		for id, f := range threads {
			rng := rand.New(rand.NewPCG(uint64(h), uint64(id)))
			wg.Go(func() {
				for range rounds {
					in := lineOp{line: rng.IntN(lineCount), op: all[rng.IntN(len(all))]}
					n := in.op.Bytes() / 8
					in.word = rng.IntN(4/n) * n
					for k := range in.args {
						in.args[k] = rng.Uint64N(3)
					}
					call := time.Since(began)
					a := f.do(0, in.op, atomics.At(1, uint64(h*4096+32*in.line+8*in.word)), in.args[:in.op.Args()]...)
					end := time.Since(began)
					if a.Status != atomics.OK {
						t.Errorf("%v: %v", in.op, a.Status)
					}
					mu.Lock()
					history = append(history, porcupine.Operation{ClientId: id, Input: in, Call: int64(call), Output: a.Values, Return: int64(end)})
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if porcupine.CheckOperationsTimeout(lines, history, time.Minute) != porcupine.Ok {
			t.Fatalf("history %d is not linearizable: %+v", h, history)
		}
	}
}

// A recording with operations of units, and operations for the driver, is replayed.
func TestRecordingOfOperations(t *testing.T) {
	var file bytes.Buffer
	var w *record.Writer
	r := newRig(t, fault.PIO, func(e *emu.Engine) {
		w = record.NewWriter(&file, e.RecordHeader(), func(err error) { t.Error(err) })
		e.Record(w)
	})
	r.forest(1, 1)
	f := r.thread(0, 0, tree)
	for i := range uint64(40) {
		if a := f.do(0, atomics.FetchAdd, atomics.At(1, 8), 1); a.Values[0] != i {
			t.Fatal(a)
		}
		f.do(1, atomics.CWrite256, atomics.At(1, 32), i, i, i, i, i)
		f.do(2, atomics.Read128, atomics.At(0, 0)) // refused
		f.do(3, atomics.Alloc, atomics.At(1, 0), 1, 0)
	}
	var digest record.Digest
	r.on(0, func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		digest, _ = w.Digest()
	})
	got, err := sim.Replay(bytes.NewReader(file.Bytes()))
	if err != nil || got.Digest != digest || !got.Header.GSAS || got.Kinds[record.AtomicDone] != 40*3 {
		t.Errorf("%v, digest %#x, want %#x, %v", err, got.Digest, digest, got.Kinds)
	}
}
