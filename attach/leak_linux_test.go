package attach

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/exanet/pfd/internal/leak"
)

// Peers that send anything before a hello, in place of a mapped and after a welcome, with and
// without descriptors, leave no descriptor or goroutine in pfd's side.
func TestMessagesLeaveNothing(t *testing.T) {
	path := serve(t, func(ctx context.Context, c *Conn) {
		if _, err := c.AwaitHello(ctx); err != nil {
			return
		}
		m, err := NewMemory()
		if err != nil {
			t.Error(err)
			return
		}
		defer m.Close()
		if c.Offer(ctx, m, m.WakeFD()) == nil && c.TakeDescriptors() == nil && c.Welcome(testWelcome) == nil {
			_ = c.Hold(ctx, Handlers{})
		}
	})
	good := golden(t)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	_, unknown := begin(nil, 99, headerSize, "x")
	hello := good["hello"]
	type talk struct {
		msgs [][]byte
		fds  int
	}
	var talks []talk
	for _, m := range [][]byte{{1}, hello, hello[:100], unknown, make([]byte, 100000), bytes.Repeat([]byte{0xff}, HelloSize), good["welcome"], good["mapped"], good["share"], good["register"], good["helper"]} {
		for _, fds := range []int{0, 1, 4, 5, 200} {
			talks = append(talks, talk{[][]byte{m}, fds}, talk{[][]byte{hello, m}, fds}, talk{[][]byte{hello, good["mapped"], m}, fds}, talk{[][]byte{hello, good["mapped"], good["share"], m, good["unshare"]}, fds})
		}
	}
	talks = append(talks, talk{nil, 0})
	leak.Rounds(t, 3*len(talks), func(i int) {
		talk := talks[i%len(talks)]
		c, err := Dial(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		for k, m := range talk.msgs {
			var fds []int
			if k < len(talk.msgs)-1 && (bytes.Equal(m, good["mapped"]) || bytes.Equal(m, good["share"])) {
				fds = []int{int(null.Fd())} // these types carry one
			}
			if k == len(talk.msgs)-1 {
				for range talk.fds {
					fds = append(fds, int(null.Fd()))
				}
			}
			if c.Send(m, fds...) != nil {
				break // it has hung up
			}
			var buf [MaxMessage]byte
			_, got, err := c.Receive(t.Context(), buf[:])
			got.Close()
			if err != nil {
				break
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}
