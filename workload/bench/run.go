package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/workload"
)

// Sizes of the transfers that most tables are of.
const (
	smallSize = 4 << 10
	largeSize = 1 << 20
)

// Parts are the names of what is measured, in its order.
var Parts = []string{"faults", "isolated", "methods", "sizes", "outstanding", "firmware", "channels", "idle", "tracing"}

// Run measures everything, or the parts that Only names. The calling goroutine is locked to its thread: what
// is started ends with it.
func (l *Lab) Run(ctx context.Context) (r Report, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r.Version = 2
	r.Machine = machine()
	var p pins
	for i, part := range []func(context.Context, *Report, *pins) error{
		l.firstLight, l.isolated, l.methods, l.sizes, l.windows, l.firmware, l.channels, l.idle, l.tracing,
	} {
		if len(l.Only) > 0 && !slices.Contains(l.Only, Parts[i]) {
			continue
		}
		if err := part(ctx, &r, &p); err != nil {
			return r, err
		}
	}
	r.PinnedBytes = p.most
	return r, nil
}

// with runs f with a pfd of its own.
func (l *Lab) with(ctx context.Context, nodes int, f func(*pfd) error, args ...string) (err error) {
	d, err := l.start(ctx, nodes, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	return f(d)
}

// rounds gives how often a row of transfers is made for count of them to count.
func rounds(count int, size uint64) int {
	parts, cold := row(size)
	return (count + parts - cold - 1) / (parts - cold)
}

// sessions closes what was opened.
type sessions []*workload.Session

func (s *sessions) add(o *workload.Session) *workload.Session {
	*s = append(*s, o)
	return o
}

func (s *sessions) close(err *error) {
	for _, o := range *s {
		*err = errors.Join(*err, o.Close())
	}
}

// Write4KiB measures only writes of 4 KiB, destination present and absent (gup,
// p1), by a pfd that is started with args.
func (l *Lab) Write4KiB(ctx context.Context, args ...string) (f Small, err error) {
	var p pins
	err = l.with(ctx, 2, func(d *pfd) (err error) {
		var open sessions
		defer open.close(&err)
		s, err := l.open(ctx, d, 0, 1, "gup", "p1")
		if err != nil {
			return err
		}
		open.add(s)
		present := transfer(&p, s, workload.Transfer{Size: smallSize, Src: workload.Present, Dst: workload.Present})
		absent := transfer(&p, s, workload.Transfer{Size: smallSize, Src: workload.Present, Dst: workload.Absent})
		if err := takeTurns(ctx, rounds(l.Small, smallSize), present, absent); err != nil {
			return err
		}
		f.Transfers, f.Present, f.Absent = l.Small, present.microseconds(), absent.microseconds()
		f.Added, f.Ratio = f.Absent-f.Present, f.Absent/f.Present
		return nil
	}, args...)
	return f, err
}

// firstLight is 4 KiB and 1 MiB, present and absent, beside the bare calls.
func (l *Lab) firstLight(ctx context.Context, r *Report, p *pins) error {
	return l.with(ctx, 2, func(d *pfd) (err error) {
		var open sessions
		defer open.close(&err)
		var b bare
		defer b.close()
		l.says("4 KiB")
		s, err := l.open(ctx, d, 0, 1, "gup", "p1")
		if err != nil {
			return err
		}
		open.add(s)
		present := transfer(p, s, workload.Transfer{Size: smallSize, Src: workload.Present, Dst: workload.Present})
		absent := transfer(p, s, workload.Transfer{Size: smallSize, Src: workload.Present, Dst: workload.Absent})
		in := b.pageIn(s, smallSize)
		if err := takeTurns(ctx, rounds(l.Small, smallSize), present, absent, in); err != nil {
			return err
		}
		f := &r.Small
		f.Transfers = l.Small
		f.Present, f.Absent, f.Bare = present.microseconds(), absent.microseconds(), in.microseconds()
		f.Added = f.Absent - f.Present
		f.Ratio, f.AddedByBare = f.Absent/f.Present, f.Added/f.Bare

		l.says("1 MiB")
		b.close()
		if s, err = l.open(ctx, d, 0, 1, "gup", "pa"); err != nil {
			return err
		}
		open.add(s)
		large := func(dst workload.State, w workload.Waiting, touch bool) *turn {
			return transfer(p, s, workload.Transfer{Size: largeSize, Src: workload.Present, Dst: dst, Waiting: w, TouchFirst: touch})
		}
		var kinds [][]*turn
		turns := []*turn{b.pageIn(s, largeSize), b.copied(s, largeSize)}
		for _, w := range []workload.Waiting{workload.Poll, workload.Wait} {
			k := []*turn{large(workload.Present, w, false), large(workload.Absent, w, false), large(workload.Absent, w, true)}
			kinds, turns = append(kinds, k), append(turns, k...)
		}
		if err := takeTurns(ctx, rounds(l.Large, largeSize), turns...); err != nil {
			return err
		}
		for i, g := range []*Large{&r.Large, &r.Sleeping} {
			g.Transfers = l.Large
			g.Bare, g.Raw = turns[0].microseconds(), turns[1].microseconds()
			g.Present, g.Absent, g.TouchFirst = kinds[i][0].microseconds(), kinds[i][1].microseconds(), kinds[i][2].microseconds()
			g.Ratio, g.ByTouchFirst = g.Absent/g.Present, g.Absent/g.TouchFirst
			g.BySum, g.RawByPresent = g.Absent/(g.Present+g.Bare), g.Raw/g.Present
		}
		return nil
	})
}

// methods is every page-in method beside the others.
func (l *Lab) methods(ctx context.Context, r *Report, p *pins) error {
	names := []string{"touch", "gup", "uffd", "populate"}
	return l.with(ctx, 2, func(d *pfd) error {
		for _, k := range []struct {
			size   uint64
			policy string
			count  int
			put    func(*Method, float64)
		}{
			{smallSize, "p1", l.Small / 2, func(m *Method, us float64) { m.Small = us }},
			{largeSize, "pa", l.Large / 2, func(m *Method, us float64) { m.Large = us }},
		} {
			err := func() (err error) {
				var open sessions
				defer open.close(&err)
				var turns []*turn
				l.says("methods, %d bytes", k.size)
				for _, name := range names {
					s, err := l.open(ctx, d, 0, 1, name, k.policy)
					if err != nil {
						return fmt.Errorf("method %s: %w", name, err)
					}
					open.add(s)
					turns = append(turns, transfer(p, s, workload.Transfer{Size: k.size, Src: workload.Present, Dst: workload.Absent}))
				}
				if err := takeTurns(ctx, rounds(k.count, k.size), turns...); err != nil {
					return err
				}
				for i, name := range names {
					if len(r.Methods) <= i {
						r.Methods = append(r.Methods, Method{Method: name})
					}
					k.put(&r.Methods[i], turns[i].microseconds())
				}
				return nil
			}()
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// sizes is reads beside writes.
func (l *Lab) sizes(ctx context.Context, r *Report, p *pins) error {
	return l.with(ctx, 2, func(d *pfd) (err error) {
		var open sessions
		defer open.close(&err)
		s, err := l.open(ctx, d, 0, 1, "gup", "pa")
		if err != nil {
			return err
		}
		open.add(s)
		for size := uint64(smallSize); size <= l.Largest; size *= 4 {
			l.says("reads and writes, %d bytes", size)
			kind := func(dst workload.State, read bool) *turn {
				return transfer(p, s, workload.Transfer{Size: size, Src: workload.Present, Dst: dst, Read: read})
			}
			wp, rp := kind(workload.Present, false), kind(workload.Present, true)
			wa, ra := kind(workload.Absent, false), kind(workload.Absent, true)
			count := min(l.Small/4, max(l.Large*largeSize/4/int(size), 3))
			if err := takeTurns(ctx, rounds(count, size), wp, rp, wa, ra); err != nil {
				return err
			}
			r.Sizes = append(r.Sizes, Size{size, wp.microseconds(), rp.microseconds(), wa.microseconds(), ra.microseconds()})
		}
		return nil
	})
}

// variants opens a session on a pfd for each list of arguments, and has f measure
// all of them.
func (l *Lab) variants(ctx context.Context, policy string, args [][]string, f func([]*workload.Session) error) (err error) {
	var open sessions
	var daemons []*pfd
	defer func() {
		open.close(&err)
		for _, d := range daemons {
			err = errors.Join(err, d.stop())
		}
	}()
	for _, a := range args {
		d, err := l.start(ctx, 2, a...)
		if err != nil {
			return err
		}
		daemons = append(daemons, d)
		s, err := l.open(ctx, d, 0, 1, "gup", policy)
		if err != nil {
			return err
		}
		open.add(s)
	}
	return f(open)
}

// windows is one, two and eight blocks of a transfer in flight.
func (l *Lab) windows(ctx context.Context, r *Report, p *pins) error {
	blocks := []int{1, 2, 8}
	var args [][]string
	for _, n := range blocks {
		args = append(args, []string{"--outstanding", strconv.Itoa(n)})
	}
	l.says("blocks in flight")
	return l.variants(ctx, "pa", args, func(s []*workload.Session) error {
		var turns []*turn
		for _, s := range s {
			for _, dst := range []workload.State{workload.Present, workload.Absent} {
				turns = append(turns, transfer(p, s, workload.Transfer{Size: largeSize, Src: workload.Present, Dst: dst}))
			}
		}
		if err := takeTurns(ctx, rounds(l.Large/2, largeSize), turns...); err != nil {
			return err
		}
		for i, n := range blocks {
			r.Outstanding = append(r.Outstanding, Window{n, turns[2*i].microseconds(), turns[2*i+1].microseconds()})
		}
		return nil
	})
}

// firmware is each optimization of 001 3.3 switched off.
func (l *Lab) firmware(ctx context.Context, r *Report, p *pins) error {
	options := []string{"all", "no-fastpath", "no-bypass", "no-tickets", "no-counters", "no-retransmission-bit", "none"}
	var args [][]string
	for _, o := range options {
		args = append(args, []string{"--firmware-options", o})
	}
	l.says("optimizations of the firmware")
	return l.variants(ctx, "p1", args, func(s []*workload.Session) error {
		kinds := []workload.Transfer{
			{Size: smallSize, Src: workload.Present, Dst: workload.Present},
			{Size: largeSize, Src: workload.Present, Dst: workload.Present},
			{Size: largeSize, Src: workload.Present, Dst: workload.Absent},
		}
		var all [][]*turn
		for k, t := range kinds {
			count := l.Large / 2
			if k == 0 {
				count = l.Small / 2
			}
			var turns []*turn
			for _, s := range s {
				turns = append(turns, transfer(p, s, t))
			}
			if err := takeTurns(ctx, rounds(count, t.Size), turns...); err != nil {
				return err
			}
			all = append(all, turns)
		}
		for i, o := range options {
			r.Firmware = append(r.Firmware, Firmware{o, all[0][i].microseconds(), all[1][i].microseconds(), all[2][i].microseconds()})
		}
		return nil
	})
}

// Numbers of the tables of channels and of an idle pfd. One user has at most 8 of
// a node's 16 slots, each with 32 channels for writes.
const (
	streamNodes   = 4
	streamDomains = 8
	streamSize    = 64
	maxChannels   = streamNodes * streamDomains * 32
	streamRounds  = 5

	idleNodes = 4
	idlePairs = 8
)

// channels is 1 to 1024 channels kept busy, in turns.
func (l *Lab) channels(ctx context.Context, r *Report, _ *pins) error {
	return l.with(ctx, streamNodes, func(d *pfd) error {
		for n := 1; n <= maxChannels; n *= 4 {
			r.Channels = append(r.Channels, Channels{Channels: n})
		}
		for _, k := range []struct {
			size uint64
			of   func(*Channels) *Rate
		}{
			{streamSize, func(c *Channels) *Rate { return &c.Tiny }},
			{smallSize, func(c *Channels) *Rate { return &c.Small }},
		} {
			l.says("1 to %d channels with writes of %d bytes", maxChannels, k.size)
			rates, err := l.stream(ctx, d, r.Channels, k.size)
			if err != nil {
				return fmt.Errorf("writes of %d bytes: %w", k.size, err)
			}
			for i := range r.Channels {
				*k.of(&r.Channels[i]) = rates[i]
			}
		}
		return nil
	})
}

// stream measures each number of channels with one size.
func (l *Lab) stream(ctx context.Context, d *pfd, counts []Channels, size uint64) (rates []Rate, err error) {
	s, err := workload.OpenStream(ctx, d.client, workload.Options{Socket: d.process.Socket(), Command: l.Command}, streamDomains, size)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	points := make([]struct{ cost, cpu turn }, len(counts))
	for range streamRounds {
		for i, c := range counts {
			before, err := used(d.pid)
			if err != nil {
				return nil, err
			}
			got, err := s.Run(c.Channels, l.Window)
			if err != nil {
				return nil, fmt.Errorf("%d channels: %w", c.Channels, err)
			}
			after, err := used(d.pid)
			if err != nil {
				return nil, err
			}
			each := int64(max(got.Transfers, 1))
			points[i].cost.ns = append(points[i].cost.ns, got.Elapsed.Nanoseconds()/each)
			points[i].cpu.ns = append(points[i].cpu.ns, (after-before).Nanoseconds()/each)
		}
	}
	for i := range points {
		cost := points[i].cost.microseconds()
		rates = append(rates, Rate{1e6 / cost, cost, points[i].cpu.microseconds()})
	}
	return rates, nil
}

// idle is a pfd that has nothing to do.
func (l *Lab) idle(ctx context.Context, r *Report, _ *pins) error {
	return l.with(ctx, idleNodes, func(d *pfd) (err error) {
		var open sessions
		defer open.close(&err)
		for i := range idlePairs {
			from := i % 2 * 2
			s, err := l.open(ctx, d, from, from+1, "gup", "p1")
			if err != nil {
				return err
			}
			open.add(s)
		}
		l.says("an idle pfd")
		if err := pause(ctx, l.Window); err != nil {
			return err
		}
		before, err := used(d.pid)
		if err != nil {
			return err
		}
		start := time.Now()
		if err := pause(ctx, 10*l.Window); err != nil {
			return err
		}
		elapsed := time.Since(start)
		after, err := used(d.pid)
		if err != nil {
			return err
		}
		r.Idle = Idle{Nodes: idleNodes, Processes: 2 * idlePairs, Seconds: elapsed.Seconds(), Percent: 100 * float64(after-before) / float64(elapsed)}
		r.Idle.Resident, err = resident(d.pid)
		return err
	})
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// used gives the processor time that a process has used. Its clock is that of
// clock_getcpuclockid(3): ~pid << 3 | CPUCLOCK_SCHED (linux/posix-timers.h).
func used(pid int) (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &ts); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// resident gives VmRSS of a process, bytes.
func resident(pid int) (int64, error) {
	name := fmt.Sprintf("/proc/%d/status", pid)
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: VmRSS: %w", name, err)
			}
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("%s has no VmRSS", name)
}

// machine tells what it is measured on; what cannot be read stays empty.
func machine() Machine {
	m := Machine{Processors: runtime.NumCPU()}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.Processor = strings.TrimSpace(v)
				break
			}
		}
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(b))
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ := strings.Cut(string(b), " ")
		m.Load, _ = strconv.ParseFloat(load, 64) // 0 where it is not a number
	}
	return m
}
