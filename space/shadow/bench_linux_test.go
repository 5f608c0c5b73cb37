package shadow

import (
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// slow is a device whose calls take a while and use no processor.
type slow struct{}

// callTime is about what a map of 64 KiB took in a guest.
const callTime = 200 * time.Microsecond

func (slow) Ranges() ([]Range, error) { return []Range{{0, 1<<39 - 1}}, nil }
func (slow) Kind() Kind               { return Pinned }

func (slow) MapDMA(uint64, uint64, int, uint64, uint32) error {
	time.Sleep(callTime)
	return nil
}

func (slow) UnmapDMA(uint64, uint64) error {
	time.Sleep(callTime)
	return nil
}

// BenchmarkOthersEvictions times the page-in of one absent page while another slot evicts all the
// time, beside the same without it, in one run. The device's calls only sleep, so the difference
// is the time for which slots wait for each other.
func BenchmarkOthersEvictions(b *testing.B) {
	const window, va, pages = 4 << 20, 0x10000000, 4096
	m, err := New(Config{DMA: slow{}, VABits: 48, Window: window, Invalidate: func(int, device.VA, int) error {
		time.Sleep(callTime)
		return nil
	}})
	if err != nil {
		b.Fatal(err)
	}
	for slot := range 2 {
		fd, _ := file(b, pages, unix.F_SEAL_SHRINK)
		if err := m.Share(slot, va, pages*page, fd, 0, true); err != nil {
			b.Fatal(err)
		}
	}
	at := 0 // no two in a row are in one place
	run := func(n int) (p50, p99 float64) {
		var times []time.Duration
		for range n {
			at = (at + 17) % pages
			began := time.Now()
			if r := m.PageIn(0, device.VA(va+at*page), 1, true); r.Err != nil {
				b.Fatal(r.Err)
			}
			times = append(times, time.Since(began))
		}
		slices.Sort(times)
		return float64(times[n/2]), float64(times[n*99/100])
	}
	n := max(b.N, 200)
	alone50, alone99 := run(n)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for p := 0; ; p = (p + 16) % pages {
			select {
			case <-stop:
				return
			default:
				m.PageIn(1, device.VA(va+p*page), 16, true)
			}
		}
	})
	with50, with99 := run(n)
	close(stop)
	wg.Wait()
	if err := m.Close(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(alone50, "alone-p50-ns")
	b.ReportMetric(alone99, "alone-p99-ns")
	b.ReportMetric(with50, "beside-p50-ns")
	b.ReportMetric(with99, "beside-p99-ns")
	b.ReportMetric(with99/alone99, "p99-ratio")
}
