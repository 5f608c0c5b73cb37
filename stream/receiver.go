package stream

// receiver is the receiving direction of an end.
type receiver struct {
	ring  []byte // a power of two
	next  uint64 // the number of the span to take
	taken uint64 // bytes of the spans so far
	read  uint64 // bytes consumed
	done  uint64 // spans consumed
	ends  [slots]uint64
	fin   bool // the last span was taken
	stop  bool // nothing more is taken

	// told is the last credit. One at a time is in flight: writes are not ordered.
	told   credit
	flying bool
	due    int64

	early *[slots]short // spans that arrived by message before their turn; length 0: none
}

// available returns the bytes that can be read without a wrap: their place in the ring.
func (r *receiver) available() []byte {
	size := uint64(len(r.ring))
	at := r.read % size
	return r.ring[at:min(size, at+r.taken-r.read)]
}

// consume frees n bytes of the ring.
func (r *receiver) consume(n int) {
	r.read += uint64(n)
	for r.done < r.next && r.ends[r.done%slots] <= r.read {
		r.done++
	}
}

// take takes the next span out of its slot, or from a message that came early. It reports whether
// there is one.
func (r *receiver) take(first, last uint64) (bool, error) {
	if r.stop {
		return false, nil
	}
	s, want := decodeSlot(first, last), uint32(r.next+1)&numberMask
	i := r.next % slots
	switch {
	case s.number == want:
		if err := r.accept(s.offset, uint64(s.length), s.flags); err != nil {
			return false, err
		}
	case r.early != nil && r.early[i].length > 0:
		m := &r.early[i]
		if err := r.accept(r.taken, uint64(m.length), 0); err != nil {
			return false, err
		}
		copy(r.ring[(r.taken-uint64(m.length))%uint64(len(r.ring)):], m.data[:m.length])
	case stale(s.number, want):
		return false, nil
	default:
		return false, errSpan
	}
	if r.early != nil {
		r.early[i].length = 0
	}
	return true, nil
}

// stale reports whether a slot was never written, or by a span before the one with number want.
func stale(number, want uint32) bool {
	return number == 0 || (number-want)%slots == 0 && (number-want)&numberMask > numberMask/2
}

// empty reports whether take would find no span.
func (r *receiver) empty(first, last uint64) bool {
	i := r.next % slots
	return r.stop || stale(decodeSlot(first, last).number, uint32(r.next+1)&numberMask) && (r.early == nil || r.early[i].length == 0)
}

// accept checks a span and counts it.
func (r *receiver) accept(offset, length uint64, flags uint8) error {
	size := uint64(len(r.ring))
	fin := flags&spanFIN != 0
	switch {
	case r.fin, flags&^spanFIN != 0, fin != (length == 0), offset != r.taken,
		length > size-r.taken%size, length > size-(r.taken-r.read), r.next-r.done >= slots:
		return errSpan
	}
	r.taken += length
	r.ends[r.next%slots] = r.taken
	r.next++
	r.fin = fin
	r.consume(0)
	return nil
}

// message keeps a span that came by message until take takes it. A number that has passed is
// doubled on the way, or was written into its slot, too.
func (r *receiver) message(s *short) error {
	switch ahead := int32(s.number - uint32(r.next)); {
	case ahead < 0, r.stop:
		return nil
	case ahead >= slots:
		return errSpan
	}
	if r.early == nil {
		r.early = new([slots]short)
	}
	r.early[s.number%slots] = *s
	return nil
}

// creditDue returns the credit to be written now, if there is one.
func (r *receiver) creditDue(now int64) (credit, bool) {
	c := credit{bytes: r.read, spans: r.done, reset: r.stop}
	switch {
	case c == r.told:
		r.due = never
		return c, false
	case r.flying:
		r.due = never // its end is an event
		return c, false
	case c.reset != r.told.reset, c.bytes-r.told.bytes >= uint64(len(r.ring))/4, c.spans-r.told.spans >= slots/4,
		r.fin && r.done == r.next, now >= r.due:
		return c, true
	case r.due == never:
		r.due = now + creditWithin
	}
	return c, false
}
