package link

import (
	"encoding/binary"
	"net"
	"sync"
	"syscall"
)

// Sizes of the buffers below TLS (defined by this project), and the header of a TLS record, whose
// bytes 3 and 4 are the length of the rest (RFC 8446 5.1).
const (
	readAhead  = 128 << 10
	readFirst  = 1 << 10 // of an idle connection
	readGrowth = 16
	tlsHeader  = 5
)

// framed is a connection below TLS. It reads and writes large pieces, where crypto/tls makes a
// system call for each TLS record. It gives TLS at most one TLS record for each read, so that more
// can say whether another one is complete.
type framed struct {
	net.Conn

	in   []byte // read ahead: in[r:w]
	r, w int
	left int // bytes that TLS has not read of the present TLS record

	mu      sync.Mutex // the reader of a tls.Conn writes, too: alerts
	collect bool       // Write keeps the bytes until flush
	out     []byte
	raw     syscall.RawConn // nil: bytes leave by Conn.Write only
	attempt func(fd uintptr) bool
}

// Read implements net.Conn. It is called on one goroutine at a time.
func (c *framed) Read(p []byte) (int, error) {
	for c.left == 0 && c.w-c.r < tlsHeader || c.left > 0 && c.r == c.w {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	if c.left == 0 {
		c.left = tlsHeader + c.record()
	}
	n := copy(p[:min(len(p), c.left)], c.in[c.r:c.w])
	c.r += n
	c.left -= n
	return n, nil
}

// record returns the length in the TLS header at the read position.
func (c *framed) record() int { return int(binary.BigEndian.Uint16(c.in[c.r+3:])) }

// fill reads more. The buffer grows when it is full.
func (c *framed) fill() error {
	if c.r == c.w {
		c.r, c.w = 0, 0
	} else if c.r > 0 {
		c.w = copy(c.in, c.in[c.r:c.w])
		c.r = 0
	}
	if c.in == nil {
		c.in = make([]byte, readFirst)
	}
	n, err := c.Conn.Read(c.in[c.w:])
	if c.w += n; c.w == len(c.in) && c.w < readAhead {
		c.in = append(c.in, make([]byte, min(readGrowth*c.w, readAhead)-c.w)...)
	}
	if n > 0 {
		return nil
	}
	return err
}

// more reports whether a complete TLS record was read ahead.
func (c *framed) more() bool {
	return c.left == 0 && c.w-c.r >= tlsHeader && c.w-c.r >= tlsHeader+c.record()
}

// shrink frees the buffers if they are empty. Read's goroutine calls it.
func (c *framed) shrink() {
	if c.r == c.w {
		c.in, c.r, c.w = nil, 0, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.out) == 0 {
		c.out = nil
	}
}

// Write implements net.Conn.
func (c *framed) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.collect {
		return c.Conn.Write(p)
	}
	c.out = append(c.out, p...)
	return len(p), nil
}

// gather makes Write keep bytes until flush.
func (c *framed) gather() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.collect = true
	if s, ok := c.Conn.(syscall.Conn); ok {
		c.raw, _ = s.SyscallConn() // nil if the connection is closed
	}
	// Another process has the socket, too, and may have made it blocking.
	c.attempt = func(fd uintptr) bool {
		n, err := syscall.SendmsgN(int(fd), c.out, nil, nil, syscall.MSG_DONTWAIT)
		if err == nil {
			c.out = c.out[:copy(c.out, c.out[n:])]
		}
		return true
	}
}

// try writes the bytes that were kept as far as the socket takes them without waiting, and reports
// whether that is all of them. An error is left to flush.
func (c *framed) try() (all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.raw != nil && len(c.out) > 0 {
		_ = c.raw.Write(c.attempt)
	}
	return len(c.out) == 0
}

// flush writes the bytes that were kept.
func (c *framed) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.Conn.Write(c.out)
	if c.out = c.out[:0]; cap(c.out) > 2*chunkSize {
		c.out = nil
	}
	return err
}
