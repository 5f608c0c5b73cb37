package hostile

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/exanet/pfd/daemon/control"
)

// floodConnections opens connections to both sockets as fast as it can, sends half a message on
// some, and keeps a few hundred open.
func floodConnections(ctx context.Context, o order, did func()) error {
	const kept = 200
	var open []net.Conn
	for i := 0; ctx.Err() == nil; i++ {
		network, path := "unix", o.Attach.Socket
		if i%2 == 0 {
			network, path = "unixpacket", control.AttachSocket(path)
		}
		c, err := net.Dial(network, path)
		if err != nil { // the listener's queue is full, as intended
			time.Sleep(attackPause / 10)
			continue
		}
		switch i % 4 {
		case 0:
			_, _ = c.Write(make([]byte, 400))
		case 1:
			_, _ = io.WriteString(c, "GET /v1/status HTTP/1.1\r\nX-Long: ")
		}
		if open = append(open, c); len(open) > kept {
			_ = open[0].Close()
			open = open[1:]
		}
		did()
	}
	return nil
}
