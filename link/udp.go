package link

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/exanet/pfd/soc/wire"
)

// Datagrams (spec/hosts.md 5).
const (
	maxDatagram  = 8900
	leastMTU     = 1280           // if the path's is not known (RFC 8200)
	ipUDP        = 48             // headers of IPv6 and UDP
	numberSize   = 8              // of the link
	prefixSize   = numberSize + 8 // with the counter
	lengthSize   = 2
	datagramKey  = 32
	exporter     = "EXPORTER-exanet-datagrams"
	udpIdle      = 100 * time.Millisecond
	sockoptMTU   = 14 // IP_MTU of linux/in.h
	sockoptMTUv6 = 24 // IPV6_MTU of linux/in6.h
)

// datagrams starts the goroutines of a session with UDP.
func (s *session) datagrams() error {
	p := s.p
	socket := p.socket
	if socket == nil {
		return errors.New("no UDP socket")
	}
	seal, open, err := s.aeads()
	if err != nil {
		return err
	}
	limit := min(maxDatagram, pathMTU(socket)-ipUDP)
	if seal != nil {
		limit -= seal.Overhead()
	}
	q := p.udp
	q.begin(nil)
	q.mu.Lock()
	q.limit = limit
	q.mu.Unlock()
	_ = socket.SetReadDeadline(time.Time{})
	number, count := s.conns[classHigh].number, uint64(0)
	out := make([]byte, 0, maxDatagram)
	s.spawn(func() error {
		return s.send(q, func(b []byte) error {
			count++
			binary.LittleEndian.PutUint64(b, number)
			binary.LittleEndian.PutUint64(b[numberSize:], count)
			if seal != nil {
				b = seal.Seal(append(out[:0], b[:prefixSize]...), nonce(b), b[prefixSize:], b[:prefixSize])
			}
			_, err := socket.Write(b)
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			return nil // as if lost
		}, func() error { return nil })
	})
	r := &datagramReader{s: s, socket: socket, open: open, free: make(chan *batch, maxBatches)}
	r.collector = wire.NewCollector(&r.pool)
	r.left = func() { go s.do(r.run) }
	s.spawn(r.run)
	return nil
}

// aeads returns the ciphers of the two directions, nil without TLS.
func (s *session) aeads() (seal, open cipher.AEAD, err error) {
	state := s.conns[classHigh].exporter()
	if state == nil {
		return nil, nil, nil
	}
	material, err := state.ExportKeyingMaterial(exporter, nil, 2*datagramKey)
	if err != nil {
		return nil, nil, fmt.Errorf("keys of datagrams: %w", err)
	}
	both := [2]cipher.AEAD{}
	for i := range both {
		block, err := aes.NewCipher(material[i*datagramKey:][:datagramKey])
		if err == nil {
			both[i], err = cipher.NewGCM(block)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("keys of datagrams: %w", err)
		}
	}
	if s.p.dials {
		return both[0], both[1], nil
	}
	return both[1], both[0], nil
}

// nonce returns the nonce of a datagram.
func nonce(b []byte) []byte {
	var n [12]byte
	copy(n[:], b[numberSize:prefixSize])
	return n[:]
}

// pathMTU returns the MTU of a socket's path.
func pathMTU(c net.Conn) int {
	mtu := 0
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				var err error
				if mtu, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_IP, sockoptMTU); err != nil {
					mtu, _ = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_IPV6, sockoptMTUv6)
				}
			})
		}
	}
	return max(mtu, leastMTU)
}

// cutFrame adds the packets of a frame to the datagrams of q, and returns how many bytes it added.
func cutFrame(q *queue, f *wire.Frame) int {
	var scratch [wire.MaxPacket]byte
	added := 0
	_ = wire.Cut(f, scratch[:0], func(packet []byte) error {
		c := q.datagram(lengthSize + len(packet))
		if len(*c) == 0 {
			*c = append(*c, make([]byte, prefixSize)...)
			added += prefixSize
		}
		*c = binary.LittleEndian.AppendUint16(*c, uint16(len(packet)))
		*c = append(*c, packet...)
		added += lengthSize + len(packet)
		return nil
	})
	return added
}

// datagram returns the datagram that has room for n more bytes.
func (q *queue) datagram(n int) *[]byte {
	if i := len(q.chunks) - 1; i >= 0 && len(q.chunks[i])+n <= q.limit {
		return &q.chunks[i]
	}
	var c []byte
	if i := len(q.free) - 1; i >= 0 {
		c, q.free = q.free[i], q.free[:i]
	} else {
		c = make([]byte, 0, q.limit)
	}
	q.chunks = append(q.chunks, c)
	return &q.chunks[len(q.chunks)-1]
}

// datagramReader reads a link's UDP socket. Its frames are of a pool of its own.
type datagramReader struct {
	s         *session
	socket    net.Conn
	open      cipher.AEAD
	replays   replays
	pool      wire.Pool
	collector *wire.Collector
	free      chan *batch
	made      int
	left      func() // goes on reading on another goroutine
}

func (r *datagramReader) run() error {
	buf := make([]byte, maxDatagram+ipUDP)
	plaintext := make([]byte, 0, len(buf))
	for {
		b := takeBatch(r.free, &r.made, r.s.done)
		if b == nil {
			return nil
		}
		for _, f := range b.frames {
			r.pool.Put(f)
		}
		b.frames = b.frames[:0]
		for len(b.frames) == 0 {
			n, err := r.socket.Read(buf)
			select {
			case <-r.s.done:
				return nil
			default:
			}
			switch {
			case errors.Is(err, net.ErrClosed):
				return fmt.Errorf("the UDP socket: %w", err)
			case err != nil: // nobody listens at the other side yet
				time.Sleep(udpIdle / 10)
				continue
			}
			r.datagram(buf[:n], plaintext, func(f *wire.Frame) {
				if sound(f) && r.s.p.genuine(f) {
					b.frames = append(b.frames, f)
				} else {
					r.pool.Put(f)
				}
			})
		}
		octets := 0
		for _, f := range b.frames {
			octets += frameSize(f)
		}
		r.s.p.framesIn.Add(uint64(len(b.frames)))
		r.s.p.octetsIn.Add(uint64(octets))
		if !r.s.sink.Arrive(b.frames, b.done, r.left) {
			return errLeft
		}
	}
}

// datagram takes the packets of a datagram. One that is not genuine, came before, or is not whole
// is dropped, as the network may do.
func (r *datagramReader) datagram(b, plaintext []byte, emit func(*wire.Frame)) {
	if len(b) < prefixSize || binary.LittleEndian.Uint64(b) != r.s.conns[classHigh].number {
		return // of a former link
	}
	packets := b[prefixSize:]
	if r.open != nil {
		var err error
		if packets, err = r.open.Open(plaintext[:0], nonce(b), packets, b[:prefixSize]); err != nil {
			r.s.p.forged.Add(1)
			return
		}
	}
	if !r.replays.fresh(binary.LittleEndian.Uint64(b[numberSize:])) {
		return
	}
	for len(packets) >= lengthSize {
		n := int(binary.LittleEndian.Uint16(packets))
		if packets = packets[lengthSize:]; n > len(packets) {
			break
		}
		if p, err := wire.DecodePacket(packets[:n]); err == nil {
			r.collector.Add(&p, emit)
		}
		packets = packets[n:]
	}
	r.collector.Flush(emit)
}

// replays remembers which of the last 64 counters came (RFC 4303 3.4.3).
type replays struct{ last, seen uint64 }

// fresh reports whether a counter has not come and is not too old, and remembers it.
func (r *replays) fresh(n uint64) bool {
	switch {
	case n > r.last:
		if d := n - r.last; d < 64 {
			r.seen = r.seen<<d | 1
		} else {
			r.seen = 1
		}
		r.last = n
		return true
	case r.last-n >= 64, r.seen>>(r.last-n)&1 != 0:
		return false
	}
	r.seen |= 1 << (r.last - n)
	return true
}
