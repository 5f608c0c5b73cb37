package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	"github.com/exanet/pfd/dht"
	"github.com/exanet/pfd/gsas"
)

// dhtBench is a measurement of a table.
type dhtBench struct {
	dhtFlags
	threads int
	puts    float64 // part of the operations
	time    time.Duration
}

// dhtRates are the rate and the latencies of one kind of operation.
type dhtRates struct {
	Operation string  `json:"operation"`
	Count     int64   `json:"count"`
	Rate      float64 `json:"per_second"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
}

func (a *app) dhtBenchCommand() *cobra.Command {
	var b dhtBench
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure gets and puts of a table of the command's own",
		Long: `bench makes a table, puts --keys keys of 64 bits with values of 128 bits into it, then lets
--threads threads of one process read and write random ones of them for the --duration,
and checks each value. It prints the rates and latencies of each kind of operation.`,
		Example: "  exanetctl dht bench --nodes 0,1 --keys 1e6 --threads 3 --puts 0.5",
		Args:    wantArgs(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := b.options()
			switch {
			case err != nil:
				return err
			case b.threads < 1 || b.threads > serveThreads:
				return usagef("--threads %d: want 1 to %d", b.threads, serveThreads)
			case !(b.puts >= 0 && b.puts <= 1):
				return usagef("--puts %v: want a part from 0 to 1", b.puts)
			case b.time <= 0:
				return usagef("--duration %v: want more than 0", b.time)
			}
			return a.dhtBench(cmd.Context(), &b, o)
		},
	}
	b.add(a, c, true)
	c.Flags().Lookup("tree").Hidden = true // its tree is its own
	c.Flags().IntVar(&b.threads, "threads", 1, "threads that read and write")
	c.Flags().Float64Var(&b.puts, "puts", 0, "part of the operations that are puts, from 0 to 1")
	c.Flags().DurationVarP(&b.time, "duration", "D", time.Second, "for how long")
	return c
}

// benchValue is the value of a key; the second word is free.
func benchValue(key, n uint64) (v [16]byte) {
	binary.LittleEndian.PutUint64(v[0:], ^key)
	binary.LittleEndian.PutUint64(v[8:], n)
	return v
}

func (a *app) dhtBench(ctx context.Context, b *dhtBench, o dht.Options) error {
	return a.threads(ctx, &b.dhtFlags, b.threads, true, func(ctx context.Context, threads []*gsas.Thread) error {
		tables := make([]*dht.Table, len(threads))
		for i, t := range threads {
			var err error
			if tables[i], err = openOrCreate(ctx, t, "bench", o, i == 0); err != nil {
				return err
			}
		}
		fill, err := b.fill(ctx, tables, o.Keys)
		if err != nil {
			return err
		}
		gets, puts, err := b.run(ctx, tables, o.Keys)
		if err != nil {
			return err
		}
		rates := []dhtRates{fill}
		for _, r := range []dhtRates{gets, puts} {
			if r.Count > 0 {
				rates = append(rates, r)
			}
		}
		if a.wantJSON() {
			return a.printJSON(rates)
		}
		tab := a.table("OPERATION", "COUNT", "RATE[1/s]", "50%[usec]", "99%[usec]")
		for _, r := range rates {
			tab.add(r.Operation, r.Count, fmt.Sprintf("%.0f", r.Rate), fmt.Sprintf("%.2f", r.P50), fmt.Sprintf("%.2f", r.P99))
		}
		return tab.flush()
	})
}

// benchKey spreads the numbers of keys over all keys, so that their order says nothing.
func benchKey(n uint64) uint64 { return (n + 1) * 0x9e3779b97f4a7c15 }

// fill puts all keys.
func (b *dhtBench) fill(ctx context.Context, tables []*dht.Table, keys uint64) (dhtRates, error) {
	var next atomic.Uint64
	h, took, err := each(tables, func(t *dht.Table, h []*hdrhistogram.Histogram, _ *rand.Rand) (bool, error) {
		n := next.Add(1) - 1
		if n >= keys {
			return false, nil
		}
		start := time.Now()
		err := t.Put(ctx, benchKey(n), benchValue(benchKey(n), 0))
		_ = h[0].RecordValue(time.Since(start).Nanoseconds())
		return true, err
	})
	return ratesOf("fill", h[0], took), err
}

// errValue: a get found a value that nobody put.
var errValue = errors.New("the table has a value that was not put")

// run gets and puts random keys for the duration.
func (b *dhtBench) run(ctx context.Context, tables []*dht.Table, keys uint64) (gets, puts dhtRates, err error) {
	end := time.Now().Add(b.time)
	h, took, err := each(tables, func(t *dht.Table, h []*hdrhistogram.Histogram, r *rand.Rand) (bool, error) {
		key := benchKey(r.Uint64N(keys))
		start := time.Now()
		if start.After(end) || ctx.Err() != nil {
			return false, ctx.Err()
		}
		if r.Float64() < b.puts {
			err := t.Put(ctx, key, benchValue(key, r.Uint64()))
			_ = h[1].RecordValue(time.Since(start).Nanoseconds())
			return true, err
		}
		v, ok, err := t.Get(ctx, key)
		_ = h[0].RecordValue(time.Since(start).Nanoseconds())
		if want := benchValue(key, binary.LittleEndian.Uint64(v[8:])); err == nil && (!ok || v != want) {
			err = fmt.Errorf("key %#x: %x, want %x: %w", key, v, want, errValue)
		}
		return true, err
	})
	return ratesOf("get", h[0], took), ratesOf("put", h[1], took), err
}

// each lets one goroutine for each table call f until it returns false, and returns the latencies that
// they recorded, and the time that it took.
func each(tables []*dht.Table, f func(*dht.Table, []*hdrhistogram.Histogram, *rand.Rand) (bool, error)) ([]*hdrhistogram.Histogram, time.Duration, error) {
	all := make([][]*hdrhistogram.Histogram, len(tables))
	errs := make([]error, len(tables))
	start := time.Now()
	var running sync.WaitGroup
	for i, t := range tables {
		for range 2 {
			all[i] = append(all[i], hdrhistogram.New(1, time.Minute.Nanoseconds(), 3))
		}
		running.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for more := true; more && errs[i] == nil; {
				more, errs[i] = f(t, all[i], r)
			}
		})
	}
	running.Wait()
	took := time.Since(start)
	for _, h := range all[1:] {
		for k := range h {
			all[0][k].Merge(h[k])
		}
	}
	return all[0], took, errors.Join(errs...)
}

func ratesOf(operation string, h *hdrhistogram.Histogram, took time.Duration) dhtRates {
	us := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1e3 }
	return dhtRates{operation, h.TotalCount(), float64(h.TotalCount()) / took.Seconds(), us(50), us(99)}
}
