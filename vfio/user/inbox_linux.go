package user

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// message is one received message. body refers to the inbox's buffer and is valid until the next
// call of next.
type message struct {
	Header
	body []byte
	fds  []int
}

// inbox splits a stream of bytes into messages. One receive returns all that is there: part of a
// message, one, or many. The kernel ends a receive after the bytes that carried descriptors. So
// the descriptors belong to the message in which that receive ended, for every peer that sends a
// message, or its header, in one call.
type inbox struct {
	buf   []byte
	r, w  int    // buf[r:w] is received and not yet taken
	pos   uint64 // of buf[r] in the stream
	limit int    // bytes of the largest message
	held  []attachment
	nheld int
}

type attachment struct {
	pos uint64 // where the message begins
	fds []int
}

const inboxSize = 64 << 10

func newInbox(limit int) *inbox { return &inbox{buf: make([]byte, inboxSize), limit: limit} }

// room returns the buffer to receive into, with room for the rest of the message that is
// incomplete.
func (in *inbox) room() []byte {
	need := HeaderSize
	if in.w-in.r >= HeaderSize {
		need = min(max(int(order.Uint32(in.buf[in.r+4:])), HeaderSize), in.limit)
	}
	switch {
	case in.r == in.w:
		in.r, in.w = 0, 0
	case len(in.buf)-in.r < need && need <= len(in.buf):
		in.w = copy(in.buf, in.buf[in.r:in.w])
		in.r = 0
	}
	if len(in.buf)-in.r < need {
		fresh := make([]byte, need)
		in.w = copy(fresh, in.buf[in.r:in.w])
		in.buf, in.r = fresh, 0
	}
	return in.buf[in.w:]
}

// await receives until a whole message is available. It fails if that takes until by. If by is
// zero, the wait for the first byte is bounded by the socket's own time limit, and the rest may
// take whole. The error matches ErrGone, and also ErrTimeout for a time-out.
func (in *inbox) await(s *socket, by time.Time, whole time.Duration) error {
	first := in.r == in.w
	for !in.pending() {
		flags := 0
		if !first {
			if by.IsZero() {
				by = time.Now().Add(whole)
			}
			if err := s.poll(unix.POLLIN, by); err != nil {
				return err
			}
			flags = unix.MSG_DONTWAIT
		}
		err := in.receive(s, flags)
		switch {
		case err == nil:
			first = false
		case !errors.Is(err, errWouldBlock):
			return err
		case first: // the socket's own time limit
			return fmt.Errorf("%w: %w", ErrGone, ErrTimeout)
		}
	}
	return nil
}

// receive adds the bytes of one receive.
func (in *inbox) receive(s *socket, flags int) error {
	p := in.room()
	if len(p) == 0 { // cannot happen while whole messages are taken first
		return fmt.Errorf("%w: no room for a message", ErrMalformed)
	}
	n, fds, err := s.recv(p, flags)
	if err != nil {
		return err
	}
	in.w += n
	if len(fds) == 0 {
		return nil
	}
	if in.nheld += len(fds); in.nheld > recvFDs {
		in.nheld -= len(fds)
		s.shed(fds)
		return fmt.Errorf("%w: more than %d descriptors at one time", ErrMalformed, recvFDs)
	}
	at := in.r
	for in.w-at >= HeaderSize {
		size := int(order.Uint32(in.buf[at+4:]))
		if size < HeaderSize || size >= in.w-at {
			break
		}
		at += size
	}
	in.held = append(in.held, attachment{in.pos + uint64(at-in.r), fds})
	return nil
}

// next returns the next whole message, if there is one. An error means that the stream cannot be
// followed any more; the message then holds only the header.
func (in *inbox) next() (m message, ok bool, err error) {
	if in.w-in.r < HeaderSize {
		return message{}, false, nil
	}
	m.Header, err = DecodeHeader(in.buf[in.r:in.w])
	if err == nil && uint64(m.Size) > uint64(in.limit) {
		err = fmt.Errorf("message of %d bytes, at most %d: %w", m.Size, in.limit, ErrMalformed)
	}
	if err != nil {
		return m, false, err
	}
	size := int(m.Size)
	if in.w-in.r < size {
		return message{}, false, nil
	}
	m.body = in.buf[in.r+HeaderSize : in.r+size : in.r+size]
	for len(in.held) > 0 && in.held[0].pos == in.pos {
		m.fds = append(m.fds, in.held[0].fds...)
		in.nheld -= len(in.held[0].fds)
		in.held = in.held[1:]
	}
	in.r += size
	in.pos += uint64(size)
	return m, true, nil
}

// pending reports whether a whole message, or an invalid header, is next.
func (in *inbox) pending() bool {
	if in.w-in.r < HeaderSize {
		return false
	}
	size := order.Uint32(in.buf[in.r+4:])
	return size < HeaderSize || uint64(size) > uint64(in.limit) || uint64(in.w-in.r) >= uint64(size)
}

// drop closes the descriptors that no message has taken over.
func (in *inbox) drop(s *socket) {
	for _, h := range in.held {
		s.shed(h.fds)
	}
	in.held, in.nheld = nil, 0
}
