package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/exanet/pfd/internal/sockets"
)

// Errors of the client. Each names the socket and says what to do.
var (
	// ErrNoDaemon says that no pfd could be reached on the socket.
	ErrNoDaemon = errors.New("no pfd can be reached")
	// ErrEnded says that pfd has ended during a stream.
	ErrEnded = errors.New("pfd ended")
	// ErrVersion says that the daemon speaks another version of this interface.
	ErrVersion = errors.New("the daemon's control interface has another version")
	// ErrForbidden says that only a user that sees everything may see this.
	ErrForbidden = errors.New("not allowed")
)

// ReplyError is an answer of the daemon other than success.
type ReplyError struct {
	Path    string // endpoint
	Status  int    // HTTP status
	Code    string // Code…
	Message string // the daemon's text
}

// Error returns the endpoint and the daemon's text.
func (e *ReplyError) Error() string { return fmt.Sprintf("pfd: %s: %s", e.Path, e.Message) }

// Is reports whether target is ErrForbidden and the daemon refused access.
func (e *ReplyError) Is(target error) bool {
	return target == ErrForbidden && e.Code == CodeForbidden
}

// maxReply bounds an answer: the registers of 16 nodes fit.
const maxReply = 64 << 20

// answerTime is how long pfd may take to begin an answer. Each of its waits for one node or for the
// end of a domain is shorter. A request that waits for several nodes in turn can take longer: pfd
// itself ends it after 25 seconds (daemon/api). Defined by this project.
const answerTime = 15 * time.Second

// Client is a client of one daemon. It is safe for concurrent use. A call returns when its context
// ends, or if pfd begins no answer within 15 seconds.
type Client struct {
	socket string
	http   http.Client
}

// New returns a client of the daemon on socket; "" means FindSocket. It does not connect yet. Its
// error matches ErrSocketPath.
func New(socket string) (*Client, error) {
	if socket == "" {
		var err error
		if socket, err = FindSocket(); err != nil {
			return nil, err
		}
	}
	if err := CheckSocket(socket); err != nil {
		return nil, err
	}
	c := &Client{socket: socket}
	c.http.Transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		MaxIdleConns:          1,
		ResponseHeaderTimeout: answerTime,
	}
	return c, nil
}

// Socket returns the path of the control socket.
func (c *Client) Socket() string { return c.socket }

// Close closes idle connections. The client can still be used.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status returns the daemon's status.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	err := c.get(ctx, PathStatus, nil, &s)
	return s, err
}

// Nodes returns the daemon's nodes.
func (c *Client) Nodes(ctx context.Context, node int) ([]Node, error) {
	var r Nodes
	err := c.get(ctx, PathNodes, nodeQuery(node), &r)
	return r.Nodes, err
}

// Domains returns the domains of a node (AllNodes: of all), also those that drain.
func (c *Client) Domains(ctx context.Context, node int) ([]Domain, error) {
	var r Domains
	err := c.get(ctx, PathDomains, nodeQuery(node), &r)
	return r.Domains, err
}

// Channels returns the channels in use on a node (AllNodes: on all).
func (c *Client) Channels(ctx context.Context, node int) ([]Channel, error) {
	var r Channels
	err := c.get(ctx, PathChannels, nodeQuery(node), &r)
	return r.Channels, err
}

// Transactions returns the blocks in flight of a node (AllNodes: of all), none if the device does
// not report them.
func (c *Client) Transactions(ctx context.Context, node int) ([]Transaction, error) {
	var r Transactions
	err := c.get(ctx, PathTransactions, nodeQuery(node), &r)
	return r.Transactions, err
}

// GSAS returns the trees of threads of the global shared address space.
func (c *Client) GSAS(ctx context.Context) ([]GSASTree, error) {
	var r GSAS
	err := c.get(ctx, PathGSAS, nil, &r)
	return r.Trees, err
}

// Hosts returns the links to other hosts.
func (c *Client) Hosts(ctx context.Context) (Hosts, error) {
	var r Hosts
	err := c.get(ctx, PathHosts, nil, &r)
	return r, err
}

// SMMU returns the context banks of a node (AllNodes: of all).
func (c *Client) SMMU(ctx context.Context, node int) ([]SMMUBank, error) {
	var r SMMU
	err := c.get(ctx, PathSMMU, nodeQuery(node), &r)
	return r.Banks, err
}

// FIFOs returns the page-fault FIFOs of a node (AllNodes: of all) and removes nothing.
func (c *Client) FIFOs(ctx context.Context, node int) ([]FIFO, error) {
	var r FIFOs
	err := c.get(ctx, PathFIFO, nodeQuery(node), &r)
	return r.FIFOs, err
}

// Counters returns the counters of a node (AllNodes: of all, and the daemon's own).
func (c *Client) Counters(ctx context.Context, node int) ([]Counter, error) {
	var r Counters
	err := c.get(ctx, PathCounters, nodeQuery(node), &r)
	return r.Counters, err
}

// Faults returns the last n faults of a node (AllNodes: of all, merged by time), oldest first. n
// is at most MaxFaults; 0 means MaxFaults.
func (c *Client) Faults(ctx context.Context, node, n int) ([]Fault, error) {
	q := nodeQuery(node)
	if n != 0 {
		q.Set("n", strconv.Itoa(n))
	}
	var r Faults
	err := c.get(ctx, PathFaults, q, &r)
	return r.Faults, err
}

// Registers returns the registers of a node's window; window "" means all windows. The reads have
// no side effect. A user that does not see everything gets an error that matches ErrForbidden.
func (c *Client) Registers(ctx context.Context, node int, window string) ([]Register, error) {
	q := nodeQuery(node)
	if window != "" {
		q.Set("window", window)
	}
	var r Registers
	err := c.get(ctx, PathRegisters, q, &r)
	return r.Registers, err
}

// Trace returns the measurements of the eBPF probe, in trace/probe's JSON, from a pfd that keeps
// the maps itself. A user that does not see everything gets an error that matches ErrForbidden.
func (c *Client) Trace(ctx context.Context) (json.RawMessage, error) {
	var r Trace
	err := c.get(ctx, PathTrace, nil, &r)
	return r.Report, err
}

// Metrics returns the metrics in Prometheus' text format.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	body, err := c.fetch(ctx, http.MethodGet, PathMetrics, nil)
	return string(body), err
}

func nodeQuery(node int) url.Values {
	q := url.Values{}
	if node != AllNodes {
		q.Set("node", strconv.Itoa(node))
	}
	return q
}

func (c *Client) get(ctx context.Context, path string, q url.Values, answer any) error {
	body, err := c.fetch(ctx, http.MethodGet, path, q)
	if err != nil {
		return err
	}
	return c.decode(path, body, answer)
}

// decode decodes an answer of this version.
func (c *Client) decode(path string, body []byte, answer any) error {
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return fmt.Errorf("pfd on %s: %s: answer is not JSON: %w", c.socket, path, err)
	}
	if v.Version != Version {
		return fmt.Errorf("%w: pfd on %s has %d, this program %d: use the exanetctl and pfd of one release", ErrVersion, c.socket, v.Version, Version)
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("pfd on %s: %s: %w", c.socket, path, err)
	}
	return nil
}

func (c *Client) fetch(ctx context.Context, method, path string, q url.Values) ([]byte, error) {
	body, err := c.open(ctx, method, path, q)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	b, err := io.ReadAll(io.LimitReader(body, maxReply))
	if err != nil {
		return nil, fmt.Errorf("pfd on %s: %s: %w", c.socket, path, err)
	}
	return b, nil
}

// open sends a request and returns the body of a successful answer.
func (c *Client) open(ctx context.Context, method, path string, q url.Values) (io.ReadCloser, error) {
	u := url.URL{Scheme: "http", Host: "pfd", Path: path, RawQuery: q.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("pfd on %s: %s: %w", c.socket, path, err)
	}
	resp, err := c.http.Do(req)
	// A pfd that ends closes its connections one by one, its listening socket among them: retry,
	// to learn whether it still listens.
	for tries := 0; err != nil && method == http.MethodGet && closed(err) && tries < closedTries; tries++ {
		select {
		case <-time.After(closedPause):
		case <-ctx.Done():
			return nil, c.dialError(ctx, err)
		}
		resp, err = c.http.Do(req)
	}
	if err != nil {
		return nil, c.dialError(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return nil, fmt.Errorf("pfd on %s: %s: %w", c.socket, path, err)
	}
	var e ErrorReply
	if json.Unmarshal(body, &e) != nil || e.Error == "" {
		return nil, &ReplyError{Path: path, Status: resp.StatusCode, Code: CodeInternal, Message: resp.Status}
	}
	return nil, &ReplyError{Path: path, Status: resp.StatusCode, Code: e.Code, Message: e.Error}
}

// Bounds of the retries if pfd closes a connection without an answer. Values below are defined by
// this project.
const (
	closedTries = 4
	closedPause = 50 * time.Millisecond
)

// closed reports whether the other side closed a connection without an answer.
func closed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// remedy says what a user does if no pfd listens on socket.
func remedy(socket string, euid int) string {
	if socket == sockets.Root && euid != 0 {
		return "only root can start it; start one of your own with `pfd --nodes 2 --socket PATH` and name it with --socket PATH"
	}
	return fmt.Sprintf("start one with `pfd --nodes 2 --socket %s`, or name another with --socket", socket)
}

// dialError returns the error of a connection, with what to do.
func (c *Client) dialError(ctx context.Context, err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err // its text contains our made-up URL
	}
	var ne net.Error
	switch {
	case ctx.Err() == nil && errors.As(err, &ne) && ne.Timeout():
		return fmt.Errorf("%w on %s: a process listens there and does not answer: check that it is a pfd, and that it is not stopped (kill -CONT) or stuck (its log) (%w)", ErrNoDaemon, c.socket, err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("pfd on %s: %w", c.socket, err)
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return fmt.Errorf("ask pfd on %s: %w", c.socket, err) // not pfd's fault
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		why := sockets.Why(c.socket, err)
		if why != "" {
			why += "; "
		}
		return fmt.Errorf("%w on %s: %s%s (%w)", ErrNoDaemon, c.socket, why, remedy(c.socket, os.Geteuid()), err)
	case errors.Is(err, fs.ErrPermission):
		why := cmp.Or(sockets.Why(c.socket, err), "this user may not open the socket: run as the user of pfd")
		return fmt.Errorf("%w on %s: %s, or start a pfd of your own with `pfd --nodes 2 --socket PATH` (%w)", ErrNoDaemon, c.socket, why, err)
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("%w on %s: %w", ErrNoDaemon, c.socket, err)
	}
	return fmt.Errorf("pfd on %s closed the connection without an answer: it ends, or this user has too many connections to it: try again (%w)", c.socket, err)
}
