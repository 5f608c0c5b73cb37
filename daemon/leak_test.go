package daemon

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/leak"
)

// Neither arbitrary bytes at the control socket nor attachments, also ones that fail, leave
// anything behind in the daemon.
func TestBytesLeaveNothing(t *testing.T) {
	r := start(t)
	long := strings.Repeat("x", 1<<16)
	streams := []string{
		"", "\x00\x01\x02", "GET", "GET / HTTP/1.1\r\n", "GET /v1/status HTTP/1.1\r\n\r\n", "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/" + long + " HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\nX: " + long + "\r\n\r\n",
		"POST /v1/domains/kick HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{", "POST /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
		"GET /v1/faults/monitor HTTP/1.1\r\nHost: x\r\n\r\n", "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET /v1/nodes?node=99999999999999999999 HTTP/1.1\r\nHost: x\r\n\r\n",
	}
	leak.Rounds(t, 10*len(streams), func(i int) {
		c, err := net.Dial("unix", r.cfg.Socket)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, streams[i%len(streams)]) // it may hang up before the end
		_ = c.(*net.UnixConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	leak.Rounds(t, 60, func(i int) {
		h := hello()
		h.Method = pagein.Method(i % 5)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		bad := i%7 == 0
		if bad {
			h.Group = "no/group"
		}
		g, err := dialAndGreet(ctx, r.attachSocket(), h)
		if (err != nil) != bad {
			t.Errorf("group %s: %v", h.Group, err)
		}
		if err != nil {
			return
		}
		g.fds.Close()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		r.until("the domain is gone", func() bool { c := r.node(0).Counts(); return c.Attached == c.Ended })
	})
}
