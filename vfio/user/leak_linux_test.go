package user

import (
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/leak"
)

// Clients that say anything, one after the other, leave nothing behind in the
// server: no descriptor, no goroutine, no memory.
func TestStreamsLeaveNothing(t *testing.T) {
	fd := memfd(t, 1<<16, 0)
	s, _ := newServer(t, func(c *Config) { c.Timeout = 50 * time.Millisecond })
	agreed := append(raw(1, CmdVersion, 0, hello("{}")), raw(2, CmdRegionWrite, 0, le(uint64(4), 7, 2, le(uint16(6))))...)
	var streams [][]byte
	for i, c := range refusals {
		streams = append(streams, append(append([]byte(nil), agreed...), raw(uint16(i), c.cmd, i%2*flagNoReply, c.payload)...))
	}
	// Half a message, nonsense, and what stands until the client goes.
	streams = append(streams, nil, agreed[:9], []byte("GET / HTTP/1.1\r\n\r\n                "),
		append(append([]byte(nil), agreed...), raw(2, CmdDMAMap, 0, le(32, 3, uint64(0), uint64(0x10000), uint64(4096)))...),
		append(append([]byte(nil), agreed...), raw(2, CmdReset, 0, nil)...))
	leak.Rounds(t, 3*len(streams), func(i int) {
		r := rawConnect(t, s)
		over := make(chan struct{})
		go func() { // read whatever it says
			defer close(over)
			_, _ = io.Copy(io.Discard, fdReader(r.fd))
		}()
		if stream := streams[i%len(streams)]; len(stream) > 0 {
			_ = r.sock.send(stream, []int{fd}) // it may hang up before the end
		}
		_ = unix.Shutdown(r.fd, unix.SHUT_WR)
		if err := <-r.ended; err == nil {
			t.Error("no reason for the end")
		}
		<-over
		r.sock.close()
	})
}
