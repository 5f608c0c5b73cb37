package control

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/exanet/pfd/internal/pcapng"
)

// Grant admits a PDID to the domain of a slot: its processes may then access the domain's memory.
// It is allowed to the domain's owner, root, and the uid of pfd.
func (c *Client) Grant(ctx context.Context, node, slot int, pdid uint16) (Changed, error) {
	q := slotQuery(node, slot)
	q.Set("pdid", strconv.Itoa(int(pdid)))
	return c.change(ctx, PathGrant, q)
}

// Kick ends the attachment of a slot. It is allowed to the domain's owner, root, and the uid of
// pfd.
func (c *Client) Kick(ctx context.Context, node, slot int) (Changed, error) {
	return c.change(ctx, PathKick, slotQuery(node, slot))
}

// DrainHost lets no new transfers to a host begin, or lets them again. The answer has that host. It is
// allowed to users who see everything, as is CutHost.
func (c *Client) DrainHost(ctx context.Context, host string, on bool) (Hosts, error) {
	v := "0"
	if on {
		v = "1"
	}
	return c.changeHost(ctx, PathDrain, url.Values{"host": {host}, "on": {v}})
}

// CutHost ends the connections to a host. For some time none is made.
func (c *Client) CutHost(ctx context.Context, host string, d time.Duration) (Hosts, error) {
	return c.changeHost(ctx, PathCut, url.Values{"host": {host}, "ms": {strconv.FormatInt(d.Milliseconds(), 10)}})
}

func (c *Client) changeHost(ctx context.Context, path string, q url.Values) (r Hosts, err error) {
	body, err := c.fetch(ctx, http.MethodPost, path, q)
	if err != nil {
		return r, err
	}
	return r, c.decode(path, body, &r)
}

func slotQuery(node, slot int) url.Values {
	return url.Values{"node": {strconv.Itoa(node)}, "slot": {strconv.Itoa(slot)}}
}

func (c *Client) change(ctx context.Context, path string, q url.Values) (r Changed, err error) {
	body, err := c.fetch(ctx, http.MethodPost, path, q)
	if err != nil {
		return r, err
	}
	return r, c.decode(path, body, &r)
}

// maxEvent bounds one line of MonitorFaults.
const maxEvent = 64 << 10

// MonitorFaults calls each for every fault of a node (AllNodes: of all) when its outcome is final,
// until ctx ends, pfd ends (ErrEnded), or each returns an error. The first call has neither a
// fault nor a loss: no later fault is missed.
func (c *Client) MonitorFaults(ctx context.Context, node int, each func(FaultEvent) error) error {
	body, err := c.open(ctx, http.MethodGet, PathMonitor, nodeQuery(node))
	if err != nil {
		return err
	}
	defer body.Close()
	began := time.Now()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		var e FaultEvent
		if err := c.decode(PathMonitor, lines.Bytes(), &e); err != nil {
			return err
		}
		if err := each(e); err != nil {
			return err
		}
	}
	return c.streamEnd(ctx, PathMonitor, began, lines.Err())
}

// Capture calls each for every block of a pcapng capture of the traffic on a node's links
// (AllNodes: of all nodes): the section, interfaces, packets cut to snap bytes (0: whole), and
// statistics if packets were lost because this client reads too slowly. It ends as MonitorFaults
// does. The block is valid until each returns.
func (c *Client) Capture(ctx context.Context, node, snap int, each func(block []byte) error) error {
	q := nodeQuery(node)
	q.Set("snap", strconv.Itoa(snap))
	body, err := c.open(ctx, http.MethodGet, PathCapture, q)
	if err != nil {
		return err
	}
	defer body.Close()
	began := time.Now()
	blocks := bufio.NewScanner(body)
	blocks.Buffer(nil, pcapng.MaxBlock)
	blocks.Split(pcapng.Blocks)
	for blocks.Scan() {
		if err := each(blocks.Bytes()); err != nil {
			return err
		}
	}
	return c.streamEnd(ctx, PathCapture, began, blocks.Err())
}

// streamEnd returns the error of a stream that began at began and has ended.
func (c *Client) streamEnd(ctx context.Context, path string, began time.Time, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("pfd on %s: %w", c.socket, ctx.Err())
	case err == nil || closed(err): // pfd has ended, in good order or not, or has dropped this client
		s, serr := c.Status(ctx)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("pfd on %s: %w", c.socket, ctx.Err())
		case serr == nil && s.State == StateReady && s.UptimeNS > time.Since(began).Nanoseconds():
			return fmt.Errorf("pfd on %s closed %s: this program read too slowly: ask again", c.socket, path)
		}
		return fmt.Errorf("%w: it was on %s", ErrEnded, c.socket)
	}
	return fmt.Errorf("pfd on %s: %s: %w", c.socket, path, err)
}
