package user

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/sockets"
	"github.com/exanet/pfd/internal/turnstile"
)

// Options configures a client. A zero value selects the default named beside the field.
type Options struct {
	MaxTransfer uint32        // bytes of data in one message; 1 MiB
	MaxFDs      int           // descriptors accepted in one message; 16
	NoTwin      bool          // do not ask for a twin socket
	Timeout     time.Duration // for the answer to a request; 10 s, negative: no limit
	Trust       []uint32      // users that may run the server, besides root and the caller's own; none
	Waiting     func(error)   // called by Redial before its first wait, with the cause; nil
	// MapRefused is called when the server refuses the DMA_MAP of a range that PostMapDMA
	// posted. It must not call the client. It may be nil.
	MapRefused func(addr, size uint64, err error)
}

func (o *Options) defaults() error {
	if o.MaxTransfer == 0 {
		o.MaxTransfer = defaultMaxTransfer
	}
	if o.MaxFDs == 0 {
		o.MaxFDs = 16
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.MaxTransfer > 1<<30 || o.MaxFDs < 1 || o.MaxFDs > recvFDs {
		return fmt.Errorf("vfio-user client: MaxTransfer %d (at most 1 GiB), MaxFDs %d (1 to %d)", o.MaxTransfer, o.MaxFDs, recvFDs)
	}
	return nil
}

// Client gives a driver access to a device behind a vfio-user socket. It is safe for concurrent
// use. One request is in progress at a time, sent and answered on the caller's goroutine; Post
// and PostMapDMA await no answer and do not wait for that request either. When the server is gone
// every method fails with ErrGone for good: Redial makes a new client.
//
// While the client lives it answers the server's DMA_READ and DMA_WRITE for the memory that it
// has mapped.
type Client struct {
	opts Options
	info DeviceInfo
	pid  int // the server's pid, 0: unknown

	mu   turnstile.Lock // one request at a time, and receiving; guards the next fields
	sock *socket
	in   *inbox
	tx   []byte
	peer limits
	many bool   // the server takes REGION_WRITE_MULTI
	cmd  uint16 // the last value that SetCommand wrote
	maps posted // DMA_MAPs whose answers were not awaited

	out  sync.Mutex // one message at a time on the socket; locked last. Guards the next fields
	id   uint16     // of the last message
	note []byte     // buffer for posted messages

	twin  *socket
	space *space // memory that the server may access by messages
	mon   monitor
	bells *signaller
	wg    sync.WaitGroup
	// served counts the server's accesses. A goroutine that reads an answer of the server sees
	// the accesses that came before it. The count makes that order known to the memory model,
	// which does not follow sockets.
	served atomic.Uint64

	sent, awaited atomic.Uint64 // requests, and those whose answer was awaited

	state  sync.Mutex
	err    error         // why the client has ended
	done   chan struct{} // closed together with setting err
	closed bool
}

// Dial connects to a server and negotiates the protocol. A server that already has a client
// refuses with an error that matches syscall.EBUSY.
func Dial(ctx context.Context, path string, o Options) (*Client, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("vfio-user %s: %w", path, err)
	}
	fd, err := dial(path, o.Trust...)
	if err != nil {
		return nil, fmt.Errorf("vfio-user: %w", err)
	}
	c, err := newClient(ctx, fd, o)
	if err != nil {
		return nil, fmt.Errorf("vfio-user %s: %w", path, err)
	}
	return c, nil
}

// Redial dials until a server answers and setup, which maps memory and sets interrupts again,
// succeeds. It retries after transient errors: no socket file, no listening process, another
// client connected, a server that ends meanwhile. It returns on any other error and at the end of
// ctx.
func Redial(ctx context.Context, path string, o Options, setup func(*Client) error) (*Client, error) {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		c, err := Dial(ctx, path, o)
		if err == nil {
			if err = setup(c); err == nil {
				return c, nil
			}
			c.Close()
		}
		if !passing(err) {
			return nil, err
		}
		if o.Waiting != nil {
			o.Waiting(err)
			o.Waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-time.After(wait):
		}
	}
}

func passing(err error) bool {
	for _, e := range []error{ErrGone, unix.ENOENT, unix.ECONNREFUSED, unix.EBUSY, unix.EAGAIN, unix.ECONNRESET} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// newClient negotiates the protocol over a connected stream socket. It owns the socket, also on
// failure.
func newClient(ctx context.Context, fd int, o Options) (*Client, error) {
	if err := o.defaults(); err != nil {
		closeFDs([]int{fd})
		return nil, err
	}
	limit := HeaderSize + dmaAccessSize + max(int(o.MaxTransfer), maxVersionData)
	c := &Client{opts: o, mu: turnstile.New(), sock: newSocket(fd), in: newInbox(limit), space: newSpace(1 << 20), done: make(chan struct{})}
	c.maps.due = map[uint16]DMAMap{}
	c.bells = newSignaller(func() { _ = c.fail(fmt.Errorf("%w: its eventfd is full and blocks", ErrMalformed)) })
	if cred, err := sockets.Peer(fd); err == nil {
		c.pid = int(cred.Pid)
	}
	err := c.sock.timeouts(max(o.Timeout, 0), max(o.Timeout, 0))
	if err == nil {
		err = c.mon.open()
	}
	stop := context.AfterFunc(ctx, c.sock.shutdown)
	if err == nil {
		err = c.agree()
	}
	if err == nil {
		c.wg.Go(func() { c.mon.watch(c) })
		err = c.ask()
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.Close()
		if ctx.Err() != nil {
			err = errors.Join(ctx.Err(), err)
		}
		return nil, err
	}
	return c, nil
}

// agree exchanges VERSION messages.
func (c *Client) agree() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	caps := Capabilities{
		MaxFDs: ptr(uint64(c.opts.MaxFDs)), MaxTransfer: ptr(uint64(c.opts.MaxTransfer)),
		MaxMaps: ptr(defaultMaxMaps), PageSizes: ptr(defaultPageSizes), WriteMulti: true,
	}
	if !c.opts.NoTwin {
		caps.Twin = &TwinSocket{Supported: true}
	}
	m, err := c.request(CmdVersion, Version{Major, Minor, caps}.Append(c.begin()), nil)
	if err != nil {
		return err
	}
	v, err := DecodeVersion(m.body)
	if err == nil && (v.Major != Major || v.Minor > Minor) {
		err = fmt.Errorf("server speaks version %d.%d, this client %d.%d: %w", v.Major, v.Minor, Major, Minor, ErrMalformed)
	}
	if err == nil {
		c.peer, err = v.Capabilities.limits()
	}
	if err != nil {
		c.sock.shed(m.fds)
		return err
	}
	c.many = v.Capabilities.WriteMulti
	return c.takeTwin(v.Capabilities.Twin, m.fds)
}

// takeTwin starts to serve the twin socket if the server set one up.
func (c *Client) takeTwin(t *TwinSocket, fds []int) error {
	if t == nil || !t.Supported {
		c.sock.shed(fds)
		return nil
	}
	if c.opts.NoTwin || t.FDIndex == nil || *t.FDIndex >= uint64(len(fds)) {
		c.sock.shed(fds)
		return fmt.Errorf("twin socket not asked for or without its descriptor: %w", ErrMalformed)
	}
	for i, fd := range fds {
		if uint64(i) != *t.FDIndex {
			c.sock.shed([]int{fd})
		}
	}
	c.twin = newSocket(fds[*t.FDIndex])
	c.twin.closer = c.sock.closer
	// On another kind of socket a shutdown may not end a receive.
	domain, err := unix.GetsockoptInt(c.twin.fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	kind, e := unix.GetsockoptInt(c.twin.fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err = errors.Join(err, e); err != nil || domain != unix.AF_UNIX || kind != unix.SOCK_STREAM {
		return errors.Join(fmt.Errorf("%w: the twin socket is no unix stream socket", ErrMalformed), err)
	}
	if err := c.twin.timeouts(0, max(c.opts.Timeout, 0)); err != nil {
		return err
	}
	c.wg.Go(c.serveTwin)
	return nil
}

func (c *Client) ask() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.plain(CmdDeviceInfo, DeviceInfo{ArgSize: deviceInfoSize}.Append(c.begin()))
	if err != nil {
		return err
	}
	if c.info, err = DecodeDeviceInfo(m.body); err != nil {
		return c.fail(err)
	}
	if c.info.Flags&DevicePCI == 0 {
		return fmt.Errorf("the device is no PCI device: %w", ErrMalformed)
	}
	return nil
}

// ServerPID returns the pid of the process that called listen, in this process's pid namespace,
// or 0 if it is unknown.
func (c *Client) ServerPID() int { return c.pid }

// Info returns the server's description of the device.
func (c *Client) Info() DeviceInfo { return c.info }

// Done returns a channel that is closed when the server is gone or the client is closed; Err then
// returns the reason.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why the client has ended, or nil while it has not. The error matches ErrGone.
func (c *Client) Err() error {
	c.state.Lock()
	defer c.state.Unlock()
	return c.err
}

// fail ends the client with a reason and returns the error for the caller.
func (c *Client) fail(err error) error {
	if !errors.Is(err, ErrGone) {
		err = fmt.Errorf("%w: %w", ErrGone, err)
	}
	c.state.Lock()
	defer c.state.Unlock()
	if c.err == nil {
		c.err = err
		close(c.done)
		c.sock.shutdown()
		if c.twin != nil {
			c.twin.shutdown()
		}
		c.mon.stir()
	}
	return c.err
}

// Close ends the connection and releases its resources. The server keeps the device's state.
// Close may be called again.
func (c *Client) Close() {
	_ = c.fail(fmt.Errorf("%w: client closed", ErrGone))
	c.wg.Wait() // its goroutines may wait for mu
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	c.in.drop(c.sock)
	c.out.Lock()
	c.sock.close()
	c.out.Unlock()
	if c.twin != nil {
		c.twin.close()
	}
	c.space.clear()
	c.mon.close()
}

// begin returns the buffer to append a request's payload to. The caller holds mu.
func (c *Client) begin() []byte {
	return append(c.tx[:0], make([]byte, HeaderSize)...)
}

// post sends a message without waiting for an answer. It first calls due, which may be nil, with
// the message's ID. The caller holds out.
func (c *Client) post(command Command, flags uint32, b []byte, fds []int, due func(id uint16)) error {
	select {
	case <-c.done:
		return c.Err()
	default:
	}
	for c.id++; c.maps.has(c.id); c.id++ {
	}
	if due != nil {
		due(c.id)
	}
	Header{ID: c.id, Command: command, Size: uint32(len(b)), Flags: flags}.Append(b[:0])
	if err := c.sock.send(b, fds); err != nil {
		return c.fail(err)
	}
	c.sent.Add(1)
	return nil
}

// Requests returns how many requests the client has sent, and how many answers it has awaited.
func (c *Client) Requests() (sent, awaited uint64) { return c.sent.Load(), c.awaited.Load() }

// request sends a request and waits for its answer, serving the server's own requests meanwhile.
// The answer's bytes are valid until the next request; its descriptors belong to the caller. The
// caller holds mu.
func (c *Client) request(command Command, b []byte, fds []int) (message, error) {
	c.tx = b
	c.out.Lock()
	err := c.post(command, flagCommand, b, fds, nil)
	id := c.id
	c.out.Unlock()
	if err != nil {
		return message{}, err
	}
	c.awaited.Add(1)
	by := time.Now().Add(c.patience())
	for {
		m, err := c.receive(by, -1)
		switch {
		case err != nil:
			return message{}, c.fail(fmt.Errorf("%v: %w", command, err))
		case m.Command != command || m.ID != id:
			c.sock.shed(m.fds)
			return message{}, c.fail(fmt.Errorf("%w: answer to %v, id %d, where %v, id %d, was due", ErrMalformed, m.Command, m.ID, command, id))
		case m.isError():
			c.sock.shed(m.fds)
			return message{}, &Error{command, unix.Errno(m.Error)}
		default:
			c.served.Load()
			if c.twin == nil && c.in.pending() { // it came with the answer, so poll does not report it
				c.mon.stir()
			}
			return m, nil
		}
	}
}

// patience returns how long the answer to a request may take, including any messages before it.
func (c *Client) patience() time.Duration {
	if c.opts.Timeout < 0 {
		return 1 << 62
	}
	return c.opts.Timeout
}

// receive returns the next awaited answer and serves the server's own requests that come before
// it. It returns an empty message once at most left DMA_MAPs are unanswered. The caller holds mu.
func (c *Client) receive(by time.Time, left int) (message, error) {
	for served := false; c.maps.many() > left; {
		m, ok, err := c.in.next()
		switch {
		case err != nil:
			return message{}, err
		case ok && m.isCommand():
			if err := c.serve(c.sock, m); err != nil {
				return message{}, err
			}
			served = true
		case ok && c.settled(m):
		case ok:
			return m, nil
		default:
			if served && time.Now().After(by) { // an endless stream of requests does not extend the wait
				return message{}, fmt.Errorf("%w: %w", ErrGone, ErrTimeout)
			}
			if err := c.in.await(c.sock, by, 0); err != nil {
				return message{}, err
			}
		}
	}
	return message{}, nil
}

// plain is like request, for answers without descriptors.
func (c *Client) plain(command Command, b []byte) (message, error) {
	m, err := c.request(command, b, nil)
	c.sock.shed(m.fds)
	m.fds = nil
	return m, err
}

// Read returns size bytes (1, 2, 4, 8) at an offset of a region. If the offset is aligned it is
// one access of the device.
func (c *Client) Read(region int, offset uint64, size int) (uint64, error) {
	if size < 1 || size > 8 {
		return 0, fmt.Errorf("vfio-user: read of %d bytes, must be 1 to 8", size)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var word [8]byte
	if err := c.readChunk(region, offset, word[:size]); err != nil {
		return 0, fmt.Errorf("vfio-user: read region %d, %#x: %w", region, offset, err)
	}
	return binary.LittleEndian.Uint64(word[:]), nil
}

// Write stores the low size bytes (1, 2, 4, 8) of value at an offset of a region. It returns when
// the device has received them.
func (c *Client) Write(region int, offset uint64, size int, value uint64) error {
	if size < 1 || size > 8 {
		return fmt.Errorf("vfio-user: write of %d bytes, must be 1 to 8", size)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], value)
	if err := c.writeChunk(region, offset, word[:size]); err != nil {
		return fmt.Errorf("vfio-user: write region %d, %#x: %w", region, offset, err)
	}
	return nil
}

// Post stores like Write but neither waits nor reports a refusal. A later access of any kind is
// ordered after it.
func (c *Client) Post(region int, offset uint64, size int, value uint64) error {
	if size < 1 || size > 8 {
		return fmt.Errorf("vfio-user: write of %d bytes, must be 1 to 8", size)
	}
	c.out.Lock()
	defer c.out.Unlock()
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], value)
	c.note = RegionAccess{offset, uint32(region), uint32(size)}.Append(append(c.note[:0], make([]byte, HeaderSize)...))
	c.note = append(c.note, word[:size]...)
	if err := c.post(CmdRegionWrite, flagCommand|flagNoReply, c.note, nil, nil); err != nil {
		return fmt.Errorf("vfio-user: write region %d, %#x: %w", region, offset, err)
	}
	return nil
}

// ReadRegion fills p from a region, with as many messages as the limits require.
func (c *Client) ReadRegion(region int, offset uint64, p []byte) error {
	return c.chunks(p, func(p []byte, at uint64) error {
		if err := c.readChunk(region, offset+at, p); err != nil {
			return fmt.Errorf("vfio-user: read region %d, %#x+%#x: %w", region, offset+at, len(p), err)
		}
		return nil
	})
}

func (c *Client) chunks(p []byte, f func(p []byte, at uint64) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := int(min(c.peer.transfer, c.opts.MaxTransfer))
	for at := 0; at < len(p); at += most {
		if err := f(p[at:min(at+most, len(p))], uint64(at)); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) readChunk(region int, offset uint64, p []byte) error {
	a := RegionAccess{offset, uint32(region), uint32(len(p))}
	m, err := c.plain(CmdRegionRead, a.Append(c.begin()))
	if err != nil {
		return err
	}
	got, data, err := DecodeRegionAccess(m.body)
	if err != nil || got != a || len(data) != len(p) {
		return c.fail(fmt.Errorf("%w: answer to REGION_READ", ErrMalformed))
	}
	copy(p, data)
	return nil
}

func (c *Client) writeChunk(region int, offset uint64, p []byte) error {
	a := RegionAccess{offset, uint32(region), uint32(len(p))}
	m, err := c.plain(CmdRegionWrite, append(a.Append(c.begin()), p...))
	if err != nil {
		return err
	}
	got, _, err := DecodeRegionAccess(m.body)
	if err != nil || got != a {
		return c.fail(fmt.Errorf("%w: answer to REGION_WRITE", ErrMalformed))
	}
	return nil
}
