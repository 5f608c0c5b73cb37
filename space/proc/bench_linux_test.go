package proc

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/proc/proctest"
)

// BenchmarkWalk walks present pages: exclusive ones, for which only pagemap is read, and shared
// ones, whose mapping is looked up once.
func BenchmarkWalk(b *testing.B) {
	c := proctest.Start(b)
	p := openChild(b, c, true)
	for _, kind := range []string{proctest.Anon, proctest.Shared} {
		va := c.Map(kind, MaxPages)
		c.Fill(va, MaxPages, 1)
		for _, pages := range []int{1, 4, MaxPages} {
			b.Run(fmt.Sprintf("%s/pages=%d", kind, pages), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if w, err := p.Walk(va, pages, true); err != nil || w != (Walk{}) {
						b.Fatal(w, err)
					}
				}
			})
		}
	}
}

func BenchmarkWalkAbsent(b *testing.B) {
	c := proctest.Start(b)
	p := openChild(b, c, true)
	va := c.Map(proctest.Anon, MaxPages)
	for _, pages := range []int{1, 4, MaxPages} {
		b.Run(fmt.Sprintf("pages=%d", pages), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if w, err := p.Walk(va, pages, true); err != nil || w.Absent != span(0, pages) {
					b.Fatal(w, err)
				}
			}
		})
	}
}

// BenchmarkCalls measures the parts: the lookup of a mapping, the two system calls of a walk, and
// a move without its bytes.
func BenchmarkCalls(b *testing.B) {
	c := proctest.Start(b)
	p := openChild(b, c, true)
	va := c.Map(proctest.Anon, MaxPages)
	c.Fill(va, MaxPages, 1)
	b.Run("query", func(b *testing.B) {
		b.ReportAllocs()
		var m Mapping
		for b.Loop() {
			if errno := procmap(p.maps, va, &m); errno != 0 {
				b.Fatal(errno)
			}
		}
	})
	b.Run("ended", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if ended(p.end) {
				b.Fatal("the keeper has ended")
			}
		}
	})
	for _, pages := range []int{1, MaxPages} {
		b.Run(fmt.Sprintf("pagemap/pages=%d", pages), func(b *testing.B) {
			b.ReportAllocs()
			var e [MaxPages]Entry
			for b.Loop() {
				if n, errno := preadEntries(p.pagemap, e[:pages], uint64(va)/page); errno != 0 || n != pages {
					b.Fatal(n, errno)
				}
			}
		})
	}
}

// moves benchmarks reads and writes of each size, in one buffer and in pieces of a packet.
func moves(b *testing.B, read, write func(bufs [][]byte, va device.VA) (int, error), va device.VA) {
	const packet = 4 << 10
	for _, size := range []int{packet, 16 << 10, 64 << 10, MaxBytes} {
		for _, buffers := range slices.Compact([]int{1, size / packet}) {
			bufs := make([][]byte, buffers)
			for i := range bufs {
				bufs[i] = make([]byte, size/buffers)
			}
			for _, op := range []struct {
				name string
				move func(bufs [][]byte, va device.VA) (int, error)
			}{{"read", read}, {"write", write}} {
				b.Run(fmt.Sprintf("%s/%dK/buffers=%d", op.name, size>>10, buffers), func(b *testing.B) {
					b.ReportAllocs()
					b.SetBytes(int64(size))
					for b.Loop() {
						if n, err := op.move(bufs, va); n != size || err != nil {
							b.Fatal(n, err)
						}
					}
				})
			}
		}
	}
}

func BenchmarkMove(b *testing.B) {
	c := proctest.Start(b)
	p := openChild(b, c, true)
	va := c.Map(proctest.Anon, MaxBytes/page)
	c.Fill(va, MaxBytes/page, 1)
	moves(b, p.ReadV, p.WriteV, va)
}

// BenchmarkMemFile is BenchmarkMove through /proc/PID/mem. pfd does not use that file: it writes
// where the process itself may not.
func BenchmarkMemFile(b *testing.B) {
	c := proctest.Start(b)
	m := openMem(b, c.PID())
	va := c.Map(proctest.Anon, MaxBytes/page)
	c.Fill(va, MaxBytes/page, 1)
	moves(b, m.readV, m.writeV, va)
}

// memFile is the descriptor of a /proc/PID/mem.
type memFile int

func openMem(t testing.TB, pid int) memFile {
	t.Helper()
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/mem", pid), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return memFile(fd)
}

func (m memFile) readV(bufs [][]byte, va device.VA) (int, error) {
	if len(bufs) == 1 {
		return unix.Pread(int(m), bufs[0], int64(va))
	}
	return unix.Preadv(int(m), bufs, int64(va))
}

func (m memFile) writeV(bufs [][]byte, va device.VA) (int, error) {
	if len(bufs) == 1 {
		return unix.Pwrite(int(m), bufs[0], int64(va))
	}
	return unix.Pwritev(int(m), bufs, int64(va))
}
