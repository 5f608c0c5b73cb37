package memport

import (
	"testing"

	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/proc/proctest"
)

// ways benchmarks the port and, for comparison, the calls that its helper makes.
func ways(b *testing.B, c *proctest.Child, ask func(r *Request), direct func(p *proc.Process) error) {
	b.Run("port", func(b *testing.B) {
		p := of(b, c)
		var r Request
		ask(&r)
		done := false
		r.Done = func() { done = true }
		b.ReportAllocs()
		for b.Loop() {
			done = false
			if ok, ended := p.Submit(&r, 1); !ok || ended {
				b.Fatal("not submitted")
			}
			for !done {
				p.Poll()
			}
			if r.Err != nil || r.PageIn.Err != nil {
				b.Fatal(r.Err, r.PageIn.Err)
			}
		}
	})
	b.Run("direct", func(b *testing.B) {
		p := open(b, c)
		b.ReportAllocs()
		for b.Loop() {
			if err := direct(p); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkPortWalk(b *testing.B) {
	c := proctest.Start(b)
	va := c.Map(proctest.Anon, 4)
	c.Fill(va, 4, 1)
	ways(b, c, func(r *Request) { r.AskWalk(va, 4, true) }, func(p *proc.Process) error {
		_, err := p.Walk(va, 4, true)
		return err
	})
}

func BenchmarkPortWrite4K(b *testing.B)   { benchmarkWrite(b, 1) }
func BenchmarkPortWrite64K(b *testing.B)  { benchmarkWrite(b, 16) }
func BenchmarkPortWrite256K(b *testing.B) { benchmarkWrite(b, 64) }

func benchmarkWrite(b *testing.B, pages int) {
	c := proctest.Start(b)
	va := c.Map(proctest.Anon, pages)
	c.Fill(va, pages, 1)
	bufs := [][]byte{make([]byte, pages*page)}
	b.SetBytes(int64(pages * page))
	ways(b, c, func(r *Request) { r.AskMove(bufs, va, true, false) }, func(p *proc.Process) error {
		_, err := p.WriteV(bufs, va)
		return err
	})
}
