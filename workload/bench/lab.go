// Package bench measures pfd from outside, as its users meet it: pfds of its own
// and test processes (package workload) that check every byte of every transfer.
//
// What is compared takes turns, so that what disturbs the machine disturbs all of
// it, and a figure is a median. Only ratios within one run mean anything beyond
// the machine that they were measured on.
package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/workload"
)

// Lab is what measurements are made with.
type Lab struct {
	PFD     string   // the program
	Command []string // starts a test process (workload.Options)
	// Rounds of 4 KiB and of 1 MiB transfers of each kind; others follow them.
	Small, Large int
	// Largest is the largest size at which reads and writes are compared, bytes.
	Largest uint64
	// Window is how long each number of channels is kept busy, and a tenth of how
	// long an idle pfd is watched.
	Window time.Duration
	// Only, where it is not empty, names the Parts that are measured.
	Only []string
	// BPFFS is a directory of a bpffs for the probe; "": tracing is not measured.
	// Untraced is a pfd without the probe point, "": there is none.
	BPFFS, Untraced string
	// Progress hears what begins; nil: nobody.
	Progress func(what string)
}

func (l *Lab) says(format string, args ...any) {
	if l.Progress != nil {
		l.Progress(fmt.Sprintf(format, args...))
	}
}

// pfd is a running one.
type pfd struct {
	process *workload.DaemonProcess
	client  *control.Client
	pid     int
}

// start starts a pfd. The calling goroutine is locked to its thread.
func (l *Lab) start(ctx context.Context, nodes int, args ...string) (*pfd, error) {
	p, err := workload.StartDaemon(ctx, l.PFD, nodes, args...)
	if err != nil {
		return nil, err
	}
	d := &pfd{process: p}
	if d.client, err = control.New(p.Socket()); err != nil {
		return nil, errors.Join(err, d.stop())
	}
	s, err := d.client.Status(ctx)
	if err != nil {
		return nil, errors.Join(err, d.stop())
	}
	d.pid = s.PID
	return d, nil
}

func (d *pfd) stop() error {
	if d.client != nil {
		d.client.Close()
	}
	return d.process.Stop()
}

// open starts an initiator and a target.
func (l *Lab) open(ctx context.Context, d *pfd, from, to int, method, policy string) (*workload.Session, error) {
	return workload.Open(ctx, d.client, workload.Options{
		Socket: d.process.Socket(), From: from, To: to, Method: method, Policy: policy, Command: l.Command,
	}, uint64(time.Now().UnixNano()))
}

// turn is one kind of thing that is measured: do gives what several of it took,
// one after the other.
type turn struct {
	do func() ([]time.Duration, error)
	ns []int64
}

// microseconds gives the median.
func (t *turn) microseconds() float64 {
	slices.Sort(t.ns)
	return float64(t.ns[(len(t.ns)-1)/2]) / 1e3
}

// warmRounds at most come before those that count.
const warmRounds = 10

// takeTurns does each turn rounds times, one after the other.
func takeTurns(ctx context.Context, rounds int, turns ...*turn) error {
	rounds = max(rounds, 1)
	warm := min(warmRounds, rounds)
	for i := range warm + rounds {
		for _, t := range turns {
			if err := ctx.Err(); err != nil {
				return err
			}
			d, err := t.do()
			if err != nil {
				return err
			}
			if i >= warm {
				for _, d := range d {
					t.ns = append(t.ns, d.Nanoseconds())
				}
			}
		}
	}
	return nil
}

// pins is the most that a process had pinned, bytes.
type pins struct{ most int64 }

// A process that was idle is not itself for a while: its runtime looks every 20 us
// what there is to do, on a processor that others need, and less often only after
// some milliseconds. And the first transfers of a row meet cold caches.
const warmTime = 20 * time.Millisecond

// row gives how many transfers of a size follow one another, and how many of them
// do not count.
func row(size uint64) (parts, cold int) {
	switch {
	case size <= 16<<10:
		return 16, 4
	case size <= 1<<20:
		return 4, 1
	}
	return 1, 0
}

// transfer gives the turn of transfers that arrive: their latencies, each with its
// share of the touching before.
func transfer(p *pins, s *workload.Session, t workload.Transfer) *turn {
	var cold int
	t.Warm, t.WarmTime = true, warmTime
	t.Parts, cold = row(t.Size)
	return arrive(p, s, t, cold)
}

// arrive gives the turn of transfers that arrive; the first few do not count.
func arrive(p *pins, s *workload.Session, t workload.Transfer, cold int) *turn {
	t.Timeout = workload.DefaultTimeout
	if t.Waiting == "" {
		t.Waiting = workload.Poll
	}
	return &turn{do: func() ([]time.Duration, error) {
		o, err := s.Do(t)
		if err != nil {
			return nil, err
		}
		if !o.Arrived || o.Wrong != "" || len(o.Parts) != t.Parts {
			return nil, fmt.Errorf("transfer of %d bytes to %s memory: %s%s", t.Size, t.Dst, o.Failure, o.Wrong)
		}
		p.most = max(p.most, o.Pinned)
		for i := range o.Parts {
			o.Parts[i] += o.Touch / time.Duration(t.Parts)
		}
		return o.Parts[cold:], nil
	}}
}
