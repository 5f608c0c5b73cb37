package emu_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"golang.org/x/sys/unix"
)

// BenchmarkWrite times whole transfers, from the doorbell to done seen by a
// polling initiator in this process, into present and into absent memory.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{4 << 10, 1 << 20} {
		for _, policy := range []fault.Policy{fault.PIO, fault.PIA} {
			for _, present := range []bool{true, false} {
				b.Run(fmt.Sprintf("%dKiB/%v/present=%v", size>>10, policy, present), func(b *testing.B) {
					r := newRig(b, policy)
					src, dst := absent(b, size), absent(b, size)
					for i := range src {
						src[i] = byte(i)
					}
					copy(dst, src)
					d := device.Descriptor{Src: va(src), Dst: va(dst), Size: uint32(size), DstNode: 1}
					times := make([]time.Duration, 0, b.N)
					b.ReportAllocs()
					b.ResetTimer()
					for b.Loop() {
						if !present {
							if err := unix.Madvise(dst, unix.MADV_DONTNEED); err != nil {
								b.Fatal(err)
							}
						}
						start := time.Now()
						if r.write(0, d) != device.DoneCompleted {
							b.Fatal("failed")
						}
						times = append(times, time.Since(start))
					}
					slices.Sort(times)
					b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1000, "p50-us")
					b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds())/1000, "p99-us")
				})
			}
		}
	}
}

// BenchmarkPolicies runs the policies in turns on one pattern: the median over passes of the time of 64
// transfers (8 of 1 MiB) into absent memory, in microseconds for each transfer. Each policy has an
// engine of its own.
func BenchmarkPolicies(b *testing.B) {
	const page = 4 << 10
	for _, p := range []struct {
		name  string
		size  int
		count int
		at    func(i int) int // of transfer i, in bytes
		every int             // of its pages are absent; 0: all
	}{
		{name: "sequential", size: page, count: 64, at: func(i int) int { return i * page }},
		{name: "strided", size: page, count: 64, at: func(i int) int { return i * 8 * page }},
		{name: "random", size: page, count: 64, at: func(i int) int { return i * i * 7 % 1021 * page }},
		{name: "16KiB", size: 4 * page, count: 64, at: func(i int) int { return i * 4 * page }},
		{name: "1MiB", size: 256 * page, count: 8, at: func(i int) int { return i * 256 * page }},
		{name: "1MiB-5percent", size: 256 * page, count: 8, at: func(i int) int { return i * 256 * page }, every: 20},
	} {
		b.Run(p.name, func(b *testing.B) {
			policies := []fault.Policy{fault.PIO, fault.PI4, fault.PIA, fault.Adaptive}
			var rigs []*rig
			for _, policy := range policies {
				rigs = append(rigs, newRig(b, policy))
			}
			src := bytes.Repeat([]byte{1}, p.size)
			times := make([][]time.Duration, len(rigs))
			var dst []byte
			for b.Loop() {
				for i, r := range rigs {
					if dst != nil {
						if err := unix.Munmap(dst); err != nil {
							b.Fatal(err)
						}
					}
					var err error
					if dst, err = unix.Mmap(-1, 0, 8<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
						b.Fatal(err)
					}
					for at := 0; p.every > 0 && at < len(dst); at += page {
						if at/page%p.every != p.every-1 {
							dst[at] = 1
						}
					}
					start := time.Now()
					for k := range p.count {
						d := device.Descriptor{Src: va(src), Dst: va(dst[p.at(k):]), Size: uint32(p.size), DstNode: 1}
						if r.write(0, d) != device.DoneCompleted {
							b.Fatal("failed")
						}
					}
					times[i] = append(times[i], time.Since(start)/time.Duration(p.count))
				}
			}
			for i, r := range rigs {
				slices.Sort(times[i])
				name := policies[i].String()
				b.ReportMetric(float64(times[i][len(times[i])/2].Nanoseconds())/1000, name+"-us")
				b.ReportMetric(float64(times[i][len(times[i])/10].Nanoseconds())/1000, name+"-p10-us")
				r.on(1, func() {
					c := r.drivers[1].Stats().Total
					b.ReportMetric(float64(c.Entries)/float64(b.N*p.count), name+"-faults")
				})
			}
		})
	}
}

// BenchmarkStall runs faults that end their access and faults that stall in turns: the median of one
// transfer into absent memory, in microseconds, and of one into present memory while another channel
// of the bank faults ("beside").
func BenchmarkStall(b *testing.B) {
	for _, size := range []int{4 << 10, 16 << 10, 1 << 20} {
		for _, policy := range []fault.Policy{fault.PIO, fault.PI4} {
			b.Run(fmt.Sprintf("%dKiB/%v", size>>10, policy), func(b *testing.B) {
				names := []string{"terminate", "stall"}
				var rigs []*rig
				for _, name := range names {
					rigs = append(rigs, newRigOf(b, emu.Config{Nodes: 2, Stall: name == "stall"}, policy))
				}
				src, dst := bytes.Repeat([]byte{1}, size), absent(b, size)
				small, other := bytes.Repeat([]byte{1}, 4096), bytes.Repeat([]byte{1}, 4096)
				alone, beside := make([][]time.Duration, 2), make([][]time.Duration, 2)
				for b.Loop() {
					for i, r := range rigs {
						if err := unix.Madvise(dst, unix.MADV_DONTNEED); err != nil {
							b.Fatal(err)
						}
						d := device.Descriptor{Src: va(src), Dst: va(dst), Size: uint32(size), DstNode: 1}
						start := time.Now()
						if r.write(0, d) != device.DoneCompleted {
							b.Fatal("failed")
						}
						alone[i] = append(alone[i], time.Since(start))
						if err := unix.Madvise(dst, unix.MADV_DONTNEED); err != nil {
							b.Fatal(err)
						}
						start = time.Now()
						r.ring(0, d)
						if r.write(1, device.Descriptor{Src: va(small), Dst: va(other), Size: 4096, DstNode: 1}) != device.DoneCompleted {
							b.Fatal("failed")
						}
						beside[i] = append(beside[i], time.Since(start))
						r.wait(0, d)
					}
				}
				for i, name := range names {
					for kind, times := range map[string][]time.Duration{"": alone[i], "-beside": beside[i]} {
						slices.Sort(times)
						b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1000, name+kind+"-us")
						b.ReportMetric(float64(times[len(times)/10].Nanoseconds())/1000, name+kind+"-p10-us")
					}
				}
			})
		}
	}
}
