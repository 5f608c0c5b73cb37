package stream_test

import (
	"io"
	"testing"

	"github.com/exanet/pfd/rdma"
)

// BenchmarkWrite measures writes of 1 MiB: by the device alone, and by a stream whose receiver
// reads all bytes.
func BenchmarkWrite(b *testing.B) {
	const size = 1 << 20
	socket := startPFD(b)
	from, to := attach(b, socket, 0), attach(b, socket, 1)
	b.Run("rdma", func(b *testing.B) {
		src, err := from.Alloc(size)
		if err != nil {
			b.Fatal(err)
		}
		dst, err := to.Alloc(size)
		if err != nil {
			b.Fatal(err)
		}
		r, err := to.Export(dst.Bytes())
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(size)
		for b.Loop() {
			t, err := from.Write(b.Context(), rdma.WriteRequest{Src: src.Bytes(), Dst: r})
			if err != nil {
				b.Fatal(err)
			}
			if err := t.Wait(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("stream", func(b *testing.B) {
		from, to := pair(b, from, listen(b, to, ":0"))
		go func() {
			buf := make([]byte, size)
			for {
				if _, err := to.Read(buf); err != nil {
					return
				}
			}
		}()
		buf := make([]byte, size)
		b.SetBytes(size)
		for b.Loop() {
			if _, err := from.Write(buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkPingPong measures a round trip of 64 bytes and one of 48, which go by messages.
func BenchmarkPingPong(b *testing.B) {
	socket := startPFD(b)
	from, to := attach(b, socket, 0), attach(b, socket, 1)
	for _, size := range []int{48, 64} {
		b.Run(string(rune('0'+size/10))+string(rune('0'+size%10)), func(b *testing.B) {
			from, to := pair(b, from, listen(b, to, ":0"))
			go io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{to}, make([]byte, size))
			buf := make([]byte, size)
			for b.Loop() {
				if _, err := from.Write(buf); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(from, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
