package stream

import "time"

// Times of the protocol, in nanoseconds. Values below are defined by this project
// (docs/streams.md).
const (
	askAgain     = int64(20 * time.Millisecond) // a message without an answer, a short span without a credit
	askFor       = int64(5 * time.Second)
	refusedFor   = int64(250 * time.Millisecond) // each message is refused: nobody is there
	busyAgain    = int64(100 * time.Microsecond) // no channel was free
	creditWithin = int64(8 * time.Millisecond)
	never        = int64(1<<63 - 1)
)

// span is a span in flight.
type span struct {
	offset uint64 // in the stream
	length uint32
	flags  uint8
	flying bool  // a write of it is in flight
	due    int64 // when it is written into its slot; never: it is
}

// sender is the sending direction of an end. A part of the peer's ring may be overwritten when the
// receiver has consumed it and no write to it is in flight, which could still write it once more.
// Bytes stay in a copy until their write has ended.
type sender struct {
	window  uint64 // bytes of the peer's ring, a power of two
	keeps   uint64 // bytes of the copy, a power of two
	sent    uint64 // bytes of all spans so far
	next    uint64 // the next span's number
	oldest  uint64 // the first span in flight
	spans   [slots]span
	credit  credit // the newest
	fin     bool   // the last span was sent
	stopped bool   // the receiver takes no more, or the connection was reset
	due     int64  // the first of the spans'
}

// kept returns the first byte of the copy that may not be overwritten yet: of a span that is being
// written, or will be unless a credit covers it.
func (s *sender) kept() uint64 {
	for n := s.oldest; n != s.next; n++ {
		if p := &s.spans[n%slots]; p.flying || p.due != never && n >= s.credit.spans {
			return p.offset
		}
	}
	return s.sent
}

// base returns the first byte of the peer's ring that may not be overwritten yet.
func (s *sender) base() uint64 {
	if s.oldest == s.next {
		return s.sent
	}
	o := &s.spans[s.oldest%slots]
	if o.flying || s.credit.bytes < o.offset {
		return o.offset
	}
	return min(s.credit.bytes, o.offset+uint64(o.length))
}

// room returns how many of want bytes the next span may have; 0: it has to wait. The last slot is
// left to the end of the stream.
func (s *sender) room(want int) int {
	if s.window == 0 || s.stopped || s.fin || s.next-s.oldest >= slots-1 || want <= 0 {
		return 0
	}
	free := min(s.window-min(s.sent-s.base(), s.window), s.keeps-(s.sent-s.kept()))
	least := min(s.window, s.keeps)
	n := min(uint64(want), least/4, free, least-s.sent%least)
	if n == free && n < uint64(want) && n < least/8 {
		return 0 // many small spans would use up the slots
	}
	return int(n)
}

// append adds a span of n bytes, which are in the copy.
func (s *sender) append(now int64, n int, flags uint8) (number uint64) {
	number = s.next
	s.spans[number%slots] = span{offset: s.sent, length: uint32(n), flags: flags, due: now}
	s.next++
	s.sent += uint64(n)
	return number
}

// wait sets when a span is written.
func (s *sender) wait(n uint64, due int64) {
	s.spans[n%slots].due = due
	s.due = min(s.due, due)
}

// credited takes a credit of the receiver; false: it cannot be.
func (s *sender) credited(c credit) bool {
	if c.bytes < s.credit.bytes || c.bytes > s.sent || c.spans < s.credit.spans || c.spans > s.next || s.credit.reset && !c.reset {
		return false
	}
	s.credit = c
	s.stopped = s.stopped || c.reset
	return true
}

// finished reports whether the receiver has consumed all spans, or takes no more.
func (s *sender) finished() bool { return s.stopped || s.fin && s.credit.spans == s.next }

// flying reports whether a write is in flight.
func (s *sender) flying() bool {
	for n := s.oldest; n != s.next; n++ {
		if s.spans[n%slots].flying {
			return true
		}
	}
	return false
}

// settle takes the ends of writes: landed returns whether the write of a span has ended, and its
// error. It returns the first error.
func (s *sender) settle(landed func(n uint64) (bool, error)) (failed error) {
	for n := s.oldest; n != s.next; n++ {
		if p := &s.spans[n%slots]; p.flying {
			ended, err := landed(n)
			if p.flying = !ended; err != nil && failed == nil {
				failed = err
			}
		}
	}
	for s.oldest != s.next && !s.spans[s.oldest%slots].flying && (s.oldest < s.credit.spans || s.stopped) {
		s.oldest++
	}
	return failed
}

// overdue calls write for each span that has to be written into its slot now.
func (s *sender) overdue(now int64, write func(n uint64)) {
	if now < s.due {
		return
	}
	s.due = never
	for n := max(s.oldest, s.credit.spans); n < s.next && !s.stopped; n++ {
		switch p := &s.spans[n%slots]; {
		case s.credit.bytes > p.offset: // it was taken, and its bytes may be overwritten
			p.due = never
		case p.due <= now:
			write(n)
		default:
			s.due = min(s.due, p.due)
		}
	}
}

// hurry makes all short spans be written into their slots: their messages may be refused, and
// nobody may be there to know.
func (s *sender) hurry(now int64) {
	for n := max(s.oldest, s.credit.spans); n < s.next; n++ {
		if p := &s.spans[n%slots]; p.due != never {
			p.due, s.due = now, now
		}
	}
}
