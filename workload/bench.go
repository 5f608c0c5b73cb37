package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// FirstLight is what `make bench` shows: medians of one run, microseconds.
type FirstLight struct {
	Version int `json:"version"`
	// 4 KiB: destination absent (gup, p1) against present.
	Small struct {
		Transfers int     `json:"transfers"` // of each kind
		Present   float64 `json:"present_us"`
		Absent    float64 `json:"absent_us"`
		Ratio     float64 `json:"absent_by_present"`
	} `json:"write_4KiB"`
	// 1 MiB: all pages absent (gup, pa) against present, and against touching all
	// of them first and then writing.
	Large struct {
		Transfers    int     `json:"transfers"`
		Present      float64 `json:"present_us"`
		Absent       float64 `json:"absent_us"`
		TouchFirst   float64 `json:"touch_first_us"` // touching and writing together
		Ratio        float64 `json:"absent_by_present"`
		ByTouchFirst float64 `json:"absent_by_touch_first"`
	} `json:"write_1MiB"`
	PinnedBytes int64 `json:"pinned_bytes"`
}

// Sizes of the first-light table, bytes.
const (
	smallSize = 4 << 10
	largeSize = 1 << 20
)

// benchWarm is how many transfers of each kind come before those that count.
const benchWarm = 10

// kind is one kind of transfer of a benchmark, and what it took.
type kind struct {
	transfer Transfer
	ns       []int64
}

func (k *kind) median() float64 {
	slices.Sort(k.ns)
	return float64(k.ns[(len(k.ns)-1)/2]) / 1e3
}

// BenchFirstLight measures. The kinds take turns, so that what disturbs the
// machine disturbs all of them. Neither the start of the processes nor the
// waking of a sleeping pfd is measured.
func BenchFirstLight(ctx context.Context, d Daemon, o Options, small, large int) (FirstLight, error) {
	f := FirstLight{Version: 1}
	kindOf := func(size uint64, dst State, w Waiting, touch bool) *kind {
		return &kind{transfer: Transfer{Size: size, Src: Present, Dst: dst, Waiting: w, Timeout: DefaultTimeout, TouchFirst: touch, Warm: true}}
	}
	o.Policy = "p1"
	present, absent := kindOf(smallSize, Present, Poll, false), kindOf(smallSize, Absent, Poll, false)
	if err := bench(ctx, d, o, small, &f, present, absent); err != nil {
		return f, err
	}
	f.Small.Transfers = small
	f.Small.Present, f.Small.Absent = present.median(), absent.median()
	f.Small.Ratio = f.Small.Absent / f.Small.Present

	o.Policy = "pa"
	present, absent = kindOf(largeSize, Present, Poll, false), kindOf(largeSize, Absent, Wait, false)
	first := kindOf(largeSize, Absent, Poll, true)
	if err := bench(ctx, d, o, large, &f, present, absent, first); err != nil {
		return f, err
	}
	f.Large.Transfers = large
	f.Large.Present, f.Large.Absent, f.Large.TouchFirst = present.median(), absent.median(), first.median()
	f.Large.Ratio, f.Large.ByTouchFirst = f.Large.Absent/f.Large.Present, f.Large.Absent/f.Large.TouchFirst
	return f, nil
}

func bench(ctx context.Context, d Daemon, o Options, count int, f *FirstLight, kinds ...*kind) (err error) {
	if count < 1 {
		return fmt.Errorf("%w: %d transfers of a kind: want 1 or more", ErrRequest, count)
	}
	s, err := Open(ctx, d, o, uint64(time.Now().UnixNano()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for i := range benchWarm + count {
		for _, k := range kinds {
			out, err := s.Do(k.transfer)
			if err != nil {
				return err
			}
			if !out.Arrived || out.Wrong != "" {
				return fmt.Errorf("transfer of %d bytes to %s memory: %s%s", k.transfer.Size, k.transfer.Dst, out.Failure, out.Wrong)
			}
			f.PinnedBytes = max(f.PinnedBytes, out.Pinned)
			if i >= benchWarm {
				k.ns = append(k.ns, (out.Latency + out.Touch).Nanoseconds())
			}
		}
	}
	return nil
}
