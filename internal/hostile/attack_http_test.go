package hostile

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/exanet/pfd/daemon/control"
)

// floodHTTP sends requests on 32 connections to the control socket: those that cost pfd the
// most work, though none of the answers belongs to this user.
func floodHTTP(ctx context.Context, o order, did func()) error {
	const connections = 32 // the limit of a user
	paths := []string{control.PathFaults + "?n=1", control.PathChannels, control.PathDomains, control.PathCounters, control.PathMetrics}
	var all sync.WaitGroup
	for i := range connections {
		all.Go(func() {
			c := http.Client{Timeout: patience, Transport: &http.Transport{
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					var d net.Dialer
					return d.DialContext(ctx, "unix", o.Attach.Socket)
				},
			}}
			for ctx.Err() == nil {
				if err := ask(ctx, &c, paths[i%len(paths)]); err != nil {
					time.Sleep(attackPause)
					continue
				}
				did()
			}
		})
	}
	all.Wait()
	return nil
}

func ask(ctx context.Context, c *http.Client, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://pfd"+path, nil)
	if err != nil {
		return err
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, res.Status)
	}
	return nil
}
