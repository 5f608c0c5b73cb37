package stream_test

import (
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/exanet/pfd/internal/leak"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/stream"
)

// soak returns the number of a test in make soak, and otherwise the smaller one of CI.
func soak(large, small int) int {
	if os.Getenv("PFD_SOAK") != "" {
		return large
	}
	return small
}

// Connections come and go and leave nothing behind: 10^5 in make soak.
func TestNothingIsLeft(t *testing.T) {
	socket := startApart(t) // a node makes the tables of its transactions when it uses them
	from, to := attach(t, socket, 0), attach(t, socket, 1)
	l := listen(t, to, ":80")
	buf := make([]byte, 100)
	leak.Rounds(t, soak(25_000, 50), func(i int) {
		a, err := stream.Dial(t.Context(), from, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		b, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Write(buf[:1+i%len(buf)]); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(b, buf[:1+i%len(buf)]); err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	})
	for _, ep := range []*rdma.Endpoint{from, to} {
		// The ends tell each other after Close has returned.
		tick := time.NewTicker(time.Millisecond)
		for held, retired := stream.Held(ep); held > 0 || retired > 0; held, retired = stream.Held(ep) {
			if <-tick.C; retired > 0 {
				t.Fatalf("%d areas are retired", retired)
			}
		}
		tick.Stop()
	}
}

// Streams of writes of 1 byte to 16 MiB, read in pieces of any size, over a link that loses frames
// or not; 10 GiB in make soak.
func TestSpans(t *testing.T) {
	for _, loss := range []float64{0, 0.01} {
		socket := startLossy(t, loss)
		from, to := attach(t, socket, 0), attach(t, socket, 1)
		a, b := pair(t, from, listen(t, to, ":80"))
		const most = 16 << 20
		src := make([]byte, most)
		r := rand.New(rand.NewPCG(1, 2))
		for i := range src {
			src[i] = byte(r.Uint32())
		}
		total := soak(10<<30, 10<<20)
		if loss > 0 {
			total /= 40 // the firmware waits for each frame that is lost
		}
		wrote := make(chan [sha256.Size]byte, 1)
		go func() {
			sum, w := sha256.New(), io.Writer(a)
			for left := total; left > 0; {
				n := min(left, 1+r.IntN(1<<r.IntN(25)), most)
				at := r.IntN(most - n + 1)
				if _, err := w.Write(src[at:][:n]); err != nil {
					t.Error(err)
					break
				}
				sum.Write(src[at:][:n])
				left -= n
			}
			if err := a.CloseWrite(); err != nil {
				t.Error(err)
			}
			wrote <- [sha256.Size]byte(sum.Sum(nil))
		}()
		sum := sha256.New()
		n, err := io.CopyBuffer(sum, struct{ io.Reader }{b}, make([]byte, 1<<20))
		if got, want := [sha256.Size]byte(sum.Sum(nil)), <-wrote; n != int64(total) || err != nil || got != want {
			t.Errorf("loss %v: %d bytes of %d, %v, checksum %x, want %x", loss, n, total, err, got, want)
		}
	}
}
