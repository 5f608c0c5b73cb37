package bench

import (
	"fmt"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/proc"
	"github.com/exanet/pfd/workload"
)

// bare measures the calls by which pfd reaches memory, without pfd and without a
// device: on the same buffers of the same test processes.
type bare struct {
	src, dst *proc.Process
	buf      []byte
}

// open follows the processes of a session, which stay the same.
func (b *bare) open(src, dst workload.Place) error {
	var err error
	if b.src == nil {
		if b.src, err = proc.OpenPID(src.PID); err != nil {
			return fmt.Errorf("the initiator's memory: %w", err)
		}
	}
	if b.dst == nil {
		if b.dst, err = proc.OpenPID(dst.PID); err != nil {
			return fmt.Errorf("the target's memory: %w", err)
		}
	}
	return nil
}

func (b *bare) close() {
	for _, p := range []*proc.Process{b.src, b.dst} {
		if p != nil {
			_ = p.Close() // nothing is left to be lost
		}
	}
	b.src, b.dst = nil, nil
}

// pageIn gives the turn of paging an absent buffer in by package gup, as many
// pages a call as pfd asks for at most. Each call knows what a walk saw, as in
// pfd; the walk is not measured.
func (b *bare) pageIn(s *workload.Session, size uint64) *turn {
	return b.turn(s, size, workload.Absent, func(_, dst device.VA) (time.Duration, error) {
		pager := gup.New(b.dst)
		var sum time.Duration
		for at := uint64(0); at < size; at += gup.MaxPages * device.PageSize {
			va := dst + device.VA(at)
			pages := int(min(size-at, gup.MaxPages*device.PageSize) / device.PageSize)
			if _, err := b.dst.Walk(va, pages, true); err != nil {
				return 0, err
			}
			start := time.Now()
			r := pager.PageIn(va, pages, true)
			sum += time.Since(start)
			if want := ^uint64(0) >> (64 - uint(pages)); r.Err != nil || r.Resident != want {
				return 0, fmt.Errorf("page-in of %d pages at %v: %#x are there, want %#x: %w", pages, va, r.Resident, want, r.Err)
			}
		}
		return sum, nil
	})
}

// copied gives the turn of moving a buffer's bytes by the two calls that pfd
// moves them by, at their largest.
func (b *bare) copied(s *workload.Session, size uint64) *turn {
	if b.buf == nil {
		b.buf = make([]byte, proc.MaxBytes)
	}
	return b.turn(s, size, workload.Present, func(src, dst device.VA) (time.Duration, error) {
		start := time.Now()
		for at := uint64(0); at < size; at += proc.MaxBytes {
			part := [][]byte{b.buf[:min(size-at, proc.MaxBytes)]}
			if _, err := b.src.ReadV(part, src+device.VA(at)); err != nil {
				return 0, err
			}
			if _, err := b.dst.WriteV(part, dst+device.VA(at)); err != nil {
				return 0, err
			}
		}
		return time.Since(start), nil
	})
}

// turn has f done with each part of buffers that are made anew, in rows as those
// of transfers.
func (b *bare) turn(s *workload.Session, size uint64, state workload.State, f func(src, dst device.VA) (time.Duration, error)) *turn {
	parts, cold := row(size)
	return &turn{do: func() ([]time.Duration, error) {
		src, dst, err := s.Prepare(workload.Transfer{Size: size * uint64(parts), Src: workload.Present, Dst: state})
		if err != nil {
			return nil, err
		}
		if err := b.open(src, dst); err != nil {
			return nil, err
		}
		// As before transfers: the processes come to rest.
		time.Sleep(warmTime)
		var took []time.Duration
		for i := range parts {
			at := device.VA(uint64(i) * size)
			d, err := f(src.VA+at, dst.VA+at)
			if err != nil {
				return nil, err
			}
			took = append(took, d)
		}
		return took[cold:], nil
	}}
}
