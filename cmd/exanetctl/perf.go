package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/maybe"
	"github.com/exanet/pfd/internal/outfile"
	"github.com/exanet/pfd/internal/workload"
)

// perfFlags are the flags of perf lat, bw, rate, msg and stream.
type perfFlags struct {
	workload.Options
	size, absent, pattern string
	memory                string
	all                   bool
	samples               string
	probability           float64
	run                   workload.PerfRun
	words                 int // of a message
}

func (a *app) perfCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "perf",
		Short: "Measure transfers and messages, as perftest does",
		Long: `perf measures transfers between two nodes of a running pfd. Without a NAME it is both
ends. With a NAME the other end is a process that serves that name (exanetctl perf serve
NAME), possibly at another pfd. perf makes transfers in rows. It makes the memory anew
before each row and checks every byte after it. The exit code is 4 if the machine does not
support the measurement.`,
		RunE: orHelp,
		Args: cobra.ArbitraryArgs,
	}
	c.AddCommand(a.perfKind("lat", "Measure the latency of transfers", "2", 1),
		a.perfKind("bw", "Measure the bytes per second", "64KiB", 16),
		a.perfKind("rate", "Measure the transfers per second", "64", 16),
		a.perfMessageCommand(),
		a.perfStreamCommand(),
		a.perfServeCommand())
	return c
}

func (a *app) perfKind(kind, short, size string, depth int) *cobra.Command {
	p := perfFlags{}
	c := &cobra.Command{
		Use:   kind + " [NAME]",
		Short: short,
		Args:  maxArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			return a.perf(cmd.Context(), kind, name, p, cmd.Flags().Changed("duration"))
		},
	}
	a.endFlags(c, &p.Options, "node of this end", "node of the other end, without a NAME")
	f := c.Flags()
	f.StringVarP(&p.size, "size", "s", size, "bytes of a transfer, with a unit or without")
	f.BoolVarP(&p.all, "all", "a", false, "all sizes from 2 bytes to 8 MiB")
	p.amountFlags(c, "transfers")
	f.IntVarP(&p.run.Depth, "depth", "q", depth, "transfers in flight, 1 to 32")
	f.BoolVar(&p.run.Read, "read", false, "reads instead of writes")
	f.StringVar(&p.absent, "absent", "", "pages that are absent before each transfer: dst, src or both")
	f.Float64Var(&p.probability, "probability", 1, "probability that a page of --absent is absent, 0 to 1")
	f.StringVar(&p.pattern, "pattern", string(workload.Sequential), "order in which memory is accessed: sequential, strided, random or zipf")
	f.StringVar(&p.memory, "memory", string(workload.Shared), "kind of memory: shared (with pfd), or any (private to the process; emulated nodes only)")
	f.BoolVar(&p.run.Folios, "folios", false, foliosUsage)
	f.BoolVar(&p.run.Sleep, "sleep", false, "sleep until a transfer ends instead of polling")
	values(c, "absent", "dst", "src", "both")
	values(c, "memory", string(workload.Shared), string(workload.Any))
	return c
}

// amountFlags adds the flags that say how much is measured, and where the samples go.
func (p *perfFlags) amountFlags(c *cobra.Command, what string) {
	f := c.Flags()
	f.IntVarP(&p.run.Count, "iters", "n", 1000, "smallest number of "+what+" of each size")
	f.DurationVarP(&p.run.Time, "duration", "D", 0, "measure for this time instead, such as 2s")
	f.StringVar(&p.samples, "samples", "", "file for all samples: CSV of size and nanoseconds")
}

func (a *app) perfMessageCommand() *cobra.Command {
	p := perfFlags{Options: workload.Options{Method: pagein.GUP.String(), Policy: pagein.PIO.String()}, size: "1", probability: 1}
	c := &cobra.Command{
		Use:   "msg [NAME]",
		Short: "Measure the latency of messages between two processes: half a round trip",
		Args:  maxArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.perf(cmd.Context(), "msg", strings.Join(args, ""), p, cmd.Flags().Changed("duration"))
		},
	}
	a.nodeFlags(c, &p.Options, "node of this end", "node of the other end, without a NAME")
	p.amountFlags(c, "round trips")
	c.Flags().IntVarP(&p.words, "words", "w", 1, "words of 8 bytes in a message, 1 to 8")
	c.Flags().BoolVarP(&p.all, "all", "a", false, "all sizes from 1 to 8 words")
	return c
}

func (a *app) perfStreamCommand() *cobra.Command {
	p := perfFlags{Options: workload.Options{Method: pagein.GUP.String(), Policy: pagein.PIO.String()}, probability: 1}
	c := &cobra.Command{
		Use:   "stream [NAME]",
		Short: "Measure writes into a stream, and writes of the same size by RDMA alone",
		Args:  maxArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.perf(cmd.Context(), "stream", strings.Join(args, ""), p, cmd.Flags().Changed("duration"))
		},
	}
	a.nodeFlags(c, &p.Options, "node of this end", "node of the other end, without a NAME")
	p.amountFlags(c, "writes")
	c.Flags().StringVarP(&p.size, "size", "s", "1MiB", "bytes of a write, with a unit or without")
	c.Flags().BoolVarP(&p.all, "all", "a", false, "all sizes from 2 bytes to 8 MiB")
	return c
}

func (a *app) perfServeCommand() *cobra.Command {
	p := perfFlags{}
	c := &cobra.Command{
		Use:   "serve NAME",
		Short: "Serve as the other end of measurements until interrupted",
		Args:  wantArgs(1, 1),
		RunE: a.asking(func(cmd *cobra.Command, d *control.Client, args []string) error {
			p.Socket, p.Trust = d.Socket(), a.trusted()
			if err := p.SetNodes(cmd.Context(), d, nil); err != nil {
				return err
			}
			return workload.ServePerf(cmd.Context(), d, p.Options, args[0], func() {
				fmt.Fprintf(a.err, "serving %s on node %d\n", args[0], p.To)
			})
		}),
	}
	nodeFlag(c.Flags(), &p.To, "node", "the second", "node to attach to")
	completeFlag(c, "node", a.nodeWords())
	return c
}

// foliosUsage describes --folios.
const foliosUsage = "let the kernel bring in several pages at a touch (folios), if its setting allows it (see doctor)"

// check completes the run from the flags and returns the sizes. timed reports whether
// --duration is given.
func (p *perfFlags) check(kind string, timed bool) (sizes []uint64, err error) {
	_, methodErr := pagein.ParseMethod(p.Method)
	_, policyErr := pagein.ParsePolicy(p.Policy)
	size, sizeErr := config.ParseSize(p.size)
	p.run.Order, p.run.Memory = workload.Pattern(p.pattern), workload.Memory(p.memory)
	switch p.absent {
	case "":
	case "dst":
		p.run.Dst = p.probability
	case "src":
		p.run.Src = p.probability
	case "both":
		p.run.Src, p.run.Dst = p.probability, p.probability
	default:
		err = fmt.Errorf("--absent %s: want dst, src or both", p.absent)
	}
	if p.absent == "" && p.probability != 1 {
		err = fmt.Errorf("--probability %v: give --absent dst, src or both, too", p.probability)
	}
	switch {
	case p.run.Time > 0:
		p.run.Count = 0
	case timed:
		err = errors.Join(err, fmt.Errorf("--duration %v: want more than 0", p.run.Time))
	}
	p.run.Size = size
	switch {
	case kind == "msg":
		m := p.message(8 * uint64(p.words))
		sizeErr = m.Check()
	case sizeErr == nil && kind == "stream":
		s := p.stream(size)
		sizeErr = s.Check()
	case sizeErr == nil:
		sizeErr = p.run.Check()
	}
	if err := errors.Join(methodErr, policyErr, err, sizeErr); err != nil {
		return nil, usagef("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	switch {
	case kind == "msg" && p.all:
		return []uint64{8, 16, 24, 32, 40, 48, 56, 64}, nil
	case kind == "msg":
		return []uint64{8 * uint64(p.words)}, nil
	case !p.all:
		return []uint64{size}, nil
	}
	for s := uint64(2); s <= 8<<20; s *= 2 {
		sizes = append(sizes, s)
	}
	return sizes, nil
}

// message returns the measurement of messages of a size in bytes.
func (p *perfFlags) message(size uint64) workload.MessageRun {
	return workload.MessageRun{Words: int(size / 8), Count: p.run.Count, Time: p.run.Time}
}

// stream returns the measurement of a stream by writes of a size.
func (p *perfFlags) stream(size uint64) workload.StreamRun {
	return workload.StreamRun{Size: size, Count: p.run.Count, Time: p.run.Time}
}

// perfLine is the result for a size: a row of the table or an element of the JSON.
type perfLine struct {
	Bytes      uint64       `json:"size_bytes"`
	Iterations int          `json:"iterations"`
	Min        float64      `json:"min_us"`
	Max        float64      `json:"max_us"`
	Typical    float64      `json:"typical_us"` // the median
	Average    float64      `json:"average_us"`
	Deviation  float64      `json:"stdev_us"`
	P99        maybe.Number `json:"p99_us"` // known for MinSamples or more
	P999       maybe.Number `json:"p99_9_us"`
	Peak       float64      `json:"peak_mb_per_second"` // the best row; 10^6 bytes
	Bandwidth  float64      `json:"average_mb_per_second"`
	Rate       float64      `json:"million_per_second"`
	Pinned     maybe.Number `json:"pinned_bytes"`
	Memory     string       `json:"memory"` // the kind that was used: under method uffd emulated nodes have only any

	// Without --folios these are unknown.
	Folio  maybe.Number `json:"folio_bytes"`       // bytes that come in at a touch
	Single *string      `json:"single_pages"`      // why that is a single page
	First  maybe.Number `json:"first_average_us"`  // transfers that bring in a folio
	Others maybe.Number `json:"others_average_us"` // transfers whose folios are there

	// Of perf stream alone: writes of the same size by RDMA, one at a time, and the stream's part of
	// that.
	RDMA  maybe.Number `json:"rdma_mb_per_second"`
	Ratio maybe.Number `json:"stream_to_rdma"`
}

func perfLineOf(size uint64, r *workload.PerfResult) (perfLine, error) {
	// The range is 1 ns to the time-out of a transfer, with three digits.
	h := hdrhistogram.New(1, workload.DefaultTimeout.Nanoseconds(), 3)
	for _, ns := range r.Latencies {
		if err := h.RecordValue(ns); err != nil {
			return perfLine{}, fmt.Errorf("a latency of %v: %w", time.Duration(ns), err)
		}
	}
	us := func(ns int64) float64 { return float64(ns) / 1e3 }
	bytes, rate, peak := r.Rate()
	l := perfLine{
		Iterations: r.Transfers(),
		Bytes:      size, Min: us(h.Min()), Max: us(h.Max()), Typical: us(h.ValueAtQuantile(50)), Average: h.Mean() / 1e3,
		Deviation: h.StdDev() / 1e3, P99: maybe.Unknown(), P999: maybe.Unknown(),
		Peak: peak / 1e6, Bandwidth: bytes / 1e6, Rate: rate / 1e6, Pinned: maybe.Number(r.Pinned), Memory: string(r.Memory),
		Folio: r.Folio.Bytes(), RDMA: maybe.Unknown(), Ratio: maybe.Unknown(),
	}
	if r.Folio.Single != "" {
		l.Single = &r.Folio.Single
	}
	first, others := r.ByFolio()
	l.First, l.Others = averageUS(first), averageUS(others)
	if len(r.Latencies) >= workload.MinSamples {
		l.P99, l.P999 = maybe.Number(us(h.ValueAtQuantile(99))), maybe.Number(us(h.ValueAtQuantile(99.9)))
	}
	if r.Pinned < 0 {
		l.Pinned = maybe.Unknown()
	}
	return l, nil
}

// averageUS returns the mean of nanoseconds, in microseconds; it is unknown for none.
func averageUS(ns []int64) maybe.Number {
	var sum int64
	for _, n := range ns {
		sum += n
	}
	return maybe.Number(sum) / maybe.Number(len(ns)) / 1e3
}

func (a *app) perf(ctx context.Context, kind, name string, p perfFlags, timed bool) (err error) {
	sizes, err := p.check(kind, timed)
	if err != nil {
		return err
	}
	d, err := a.client()
	if err != nil {
		return err
	}
	p.Socket, p.Trust = d.Socket(), a.trusted()
	runtime.LockOSThread() // so that no other goroutine runs on the polling thread
	if err := p.SetNodes(ctx, d, nil); err != nil {
		return err
	}
	m, err := workload.OpenPerf(ctx, d, p.Options, name)
	if err != nil {
		return err
	}
	defer func() {
		if e := m.Close(); !errors.Is(err, control.ErrEnded) { // after that Close fails as a consequence
			err = errors.Join(err, e)
		}
	}()
	samples := func(uint64, []int64) error { return nil }
	if p.samples != "" {
		f, err := outfile.Open(p.samples, outfile.Options{Mode: 0o644})
		if err != nil {
			return err
		}
		w := bufio.NewWriter(f)
		fmt.Fprintln(w, "size_bytes,ns")
		samples = func(size uint64, list []int64) error {
			for _, ns := range list {
				fmt.Fprintf(w, "%d,%d\n", size, ns)
			}
			return w.Flush()
		}
		defer func() { err = errors.Join(err, f.Close()) }()
	}
	columns := []string{"#bytes", "#iterations", "BW peak[MB/sec]", "BW average[MB/sec]", "MsgRate[Mpps]"}
	var spare []string
	if kind == "lat" || kind == "msg" {
		columns = []string{"#bytes", "#iterations", "t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]", "t_stdev[usec]", "99%[usec]", "99.9%[usec]"}
		spare = []string{"t_stdev[usec]", "99.9%[usec]", "#iterations", "t_avg[usec]"}
	}
	if kind == "stream" {
		columns = append(columns, "RDMA[MB/sec]", "stream/RDMA")
	}
	if p.run.Folios {
		columns = append(columns, "t_first[usec]", "t_others[usec]")
	}
	t := a.table(columns...)
	t.spare = spare
	var lines []perfLine
	var folio workload.Folio
	for _, size := range sizes {
		var r, bare workload.PerfResult
		var err error
		q := p.run
		q.Size = size
		switch kind {
		case "msg":
			r, err = m.Messages(ctx, p.message(size))
		case "stream":
			if bare, err = m.Run(ctx, q); err == nil {
				r, err = m.Streams(ctx, p.stream(size))
			}
		default:
			r, err = m.Run(ctx, q)
		}
		if err != nil {
			return err
		}
		if err := samples(size, r.Latencies); err != nil {
			return err
		}
		l, err := perfLineOf(size, &r)
		if err != nil {
			return err
		}
		if kind == "stream" {
			by, _, _ := bare.Rate()
			l.RDMA, l.Ratio = maybe.Number(by/1e6), maybe.Number(l.Bandwidth*1e6/by)
		}
		lines, folio = append(lines, l), r.Folio
		row := []any{l.Bytes, l.Iterations, fixed(l.Peak, 2), fixed(l.Bandwidth, 2), fixed(l.Rate, 6)}
		if kind == "lat" || kind == "msg" {
			row = []any{l.Bytes, l.Iterations, fixed(l.Min, 2), fixed(l.Max, 2), fixed(l.Typical, 2), fixed(l.Average, 2), fixed(l.Deviation, 2), fixed(float64(l.P99), 2), fixed(float64(l.P999), 2)}
		}
		if kind == "stream" {
			row = append(row, fixed(float64(l.RDMA), 2), fixed(float64(l.Ratio), 2))
		}
		if p.run.Folios {
			row = append(row, fixed(float64(l.First), 2), fixed(float64(l.Others), 2))
		}
		t.add(row...)
	}
	if a.wantJSON() {
		return a.printJSON(lines)
	}
	if err := t.flush(); err != nil || !p.run.Folios {
		return err
	}
	return a.remark("folios: %v", folio)
}

// fixed returns a cell with a number of digits after the decimal point.
func fixed(v float64, digits int) quantity {
	if math.IsNaN(v) {
		return unmeasured
	}
	return quantity{n: v, text: strconv.FormatFloat(v, 'f', digits, 64)}
}
