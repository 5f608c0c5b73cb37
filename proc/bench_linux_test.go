package proc

import (
	"fmt"
	"testing"

	"github.com/exanet/pfd/proc/proctest"
)

func BenchmarkWalk(b *testing.B) {
	c := proctest.Start(b)
	for _, query := range []bool{true, false} {
		p := openChild(b, c, query)
		va := c.Map(proctest.Anon, MaxPages)
		c.Fill(va, MaxPages, 1)
		name := map[bool]string{true: "query", false: "maps"}[query]
		for _, pages := range []int{1, 4, MaxPages} {
			b.Run(fmt.Sprintf("%s/pages=%d", name, pages), func(b *testing.B) {
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

// BenchmarkCalls measures the two system calls of a walk by themselves.
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

func BenchmarkMove(b *testing.B) {
	c := proctest.Start(b)
	p := openChild(b, c, true)
	va := c.Map(proctest.Anon, MaxBytes/page)
	c.Fill(va, MaxBytes/page, 1)
	for _, size := range []int{4 << 10, 16 << 10, 64 << 10, MaxBytes} {
		for _, buffers := range []int{1, size / (4 << 10)} {
			bufs := make([][]byte, buffers)
			for i := range bufs {
				bufs[i] = make([]byte, size/buffers)
			}
			if buffers == 1 || size > 4<<10 {
				b.Run(fmt.Sprintf("read/%dK/buffers=%d", size>>10, buffers), func(b *testing.B) {
					b.ReportAllocs()
					b.SetBytes(int64(size))
					for b.Loop() {
						if _, err := p.ReadV(bufs, va); err != nil {
							b.Fatal(err)
						}
					}
				})
				b.Run(fmt.Sprintf("write/%dK/buffers=%d", size>>10, buffers), func(b *testing.B) {
					b.ReportAllocs()
					b.SetBytes(int64(size))
					for b.Loop() {
						if _, err := p.WriteV(bufs, va); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
			if size == 4<<10 {
				break
			}
		}
	}
}
