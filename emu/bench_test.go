package emu_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
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
