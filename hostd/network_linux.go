package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/sockets"
	"github.com/exanet/pfd/internal/uids"
	"github.com/exanet/pfd/link/handover"
)

// Values below are defined by this project.
const (
	// dialTime bounds a dial, in which an attempt begins after each attemptPause beside those before: TCP
	// itself sends its first packet again only after a second, and a cable that is back is to be noticed
	// sooner. A host that is unreachable, perhaps for long, is tried more rarely. pfd asks for another dial.
	dialTime         = time.Second
	attemptPause     = 20 * time.Millisecond
	unreachablePause = 100 * time.Millisecond
	// acceptsPerSecond is how many connections of one network are accepted in a second: a host that
	// dials again needs two each 100 ms. maxNetworks bounds the networks that are counted.
	acceptsPerSecond = 64
	maxNetworks      = 4096
	acceptPause      = 100 * time.Millisecond // after an error
	// unsentMost bounds what waits in a socket, in bytes: pfd's queue of the link waits instead, whose length pfd
	// knows. With megabytes in the kernel a slow link takes longer than the time-out of a block, and each goes twice.
	unsentMost = 128 << 10
)

// trusts reports whether exanet-hostd, of user euid, hands the key of its host to user uid, who serves
// the socket at path. Root has named the socket of a user's pfd by its directory, where only that user
// makes sockets.
func trusts(path string, uid uint32, euid int) bool {
	if sockets.Trusted(path, uid, nil) {
		return true
	}
	info, err := os.Stat(filepath.Dir(path))
	if err != nil || euid != 0 || info.Mode().Perm()&0o022 != 0 {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && uids.Same(st.Uid, uid)
}

// listen listens for other hosts.
func listen(ctx context.Context, o *options, set *settings) (net.Listener, error) {
	address := o.listen
	if address == "" {
		address = net.JoinHostPort("", portOf(set.self.Address))
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("%w: end the program that listens there, give host %s another port in %s, or name another address with --listen", err, o.name, o.file)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, limits.RemedyOr(err, "name another address with --listen"))
	}
	return l, nil
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address) // the file's check, or the kernel, has made it
	return port
}

// accept passes accepted connections on until ctx ends: all, or those from a trusted network. One
// network (function network) cannot keep those of others out.
func (s *server) accept(ctx context.Context, l net.Listener, trusted netip.Prefix, accepted chan<- net.Conn) {
	counts, begin := map[netip.Prefix]int{}, time.Now()
	for ctx.Err() == nil {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() == nil {
				s.log.Warn("cannot accept a connection", "err", limits.Explain(err))
				select {
				case <-time.After(acceptPause):
				case <-ctx.Done():
				}
			}
			continue
		}
		if time.Since(begin) > time.Second {
			clear(counts)
			begin = time.Now()
		}
		from := peerOf(c)
		counts[network(from)]++
		if trusted.IsValid() && !trusted.Contains(from) || counts[network(from)] > acceptsPerSecond || len(counts) > maxNetworks {
			_ = c.Close() // nothing was written to it
			continue
		}
		tune(c)
		select {
		case accepted <- c:
		case <-ctx.Done():
			_ = c.Close() // nothing was written to it
		}
	}
}

// network returns the range of addresses that usually belongs to one user.
func network(a netip.Addr) netip.Prefix {
	bits := 32
	switch {
	case a.Is6():
		bits = 64
	case a.IsLoopback():
		bits = 8
	}
	p, _ := a.Prefix(bits) // fails only for no address
	return p
}

// peerOf returns the address of the peer.
func peerOf(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// dial connects to a host within dialTime, by attempts that begin pause apart.
func dial(ctx context.Context, address, own string, udp bool, pause time.Duration) (net.Conn, error) {
	var attempts sync.WaitGroup
	defer attempts.Wait()
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	type result struct {
		c   net.Conn
		err error
	}
	results := make(chan result)
	begin := func() {
		c, err := attempt(ctx, address, own, udp)
		select {
		case results <- result{c, err}:
		case <-ctx.Done():
			if c != nil {
				_ = c.Close() // nothing was written to it
			}
		}
	}
	next := time.NewTicker(pause)
	defer next.Stop()
	attempts.Go(begin)
	for why := error(nil); ; {
		select {
		case r := <-results:
			if r.err == nil {
				return r.c, nil
			}
			var late net.Error
			if why == nil || !errors.As(r.err, &late) || !late.Timeout() { // a time-out says least
				why = r.err
			}
		case <-next.C:
			attempts.Go(begin)
		case <-ctx.Done():
			if why == nil {
				why = fmt.Errorf("dial %s: no answer in %v", address, dialTime)
			}
			return nil, why
		}
	}
}

// attempt tries to connect to a host. A UDP socket has the address of this host, own, as its source: the
// peer's is connected to it.
func attempt(ctx context.Context, address, own string, udp bool) (net.Conn, error) {
	var d net.Dialer
	if !udp {
		c, err := d.DialContext(ctx, "tcp", address)
		if err == nil {
			tune(c)
		}
		return c, err
	}
	local, err := net.ResolveUDPAddr("udp", own)
	if err != nil {
		return nil, err
	}
	d.LocalAddr = local
	// One socket for each peer has the same source. Unlike SO_REUSEADDR the option does not let other
	// users' sockets have it, too.
	d.Control = func(_, _ string, c syscall.RawConn) (err error) {
		if cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }); cerr != nil {
			return cerr
		}
		return err
	}
	return d.DialContext(ctx, "udp", address)
}

// tune sets the options of a connection, besides those that package net sets on pfd's side. None is needed for correctness, so errors do not matter.
func tune(c net.Conn) {
	tc, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	_ = sockets.Control(tc, func(fd int) error {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(handover.DeadTime.Milliseconds()))
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentMost)
		// Retransmit at a steady pace at first, and not at twice the time after each: so a connection
		// goes on soon after a cable is back.
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS, 1)
	})
}
