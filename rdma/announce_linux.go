package rdma

import (
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
)

// rings are the channels whose announcement is pending: until pfd reads them, the doorbell word
// and the packetizer's channels hold only a few. The endpoint's lock guards all fields but some.
type rings struct {
	queue   [device.WriteChannels]uint8 // n of them, from head on
	head, n int
	queued  uint32      // one bit for each that is in queue
	some    atomic.Bool // n > 0: readable without the lock
	served  bool        // a goroutine retries
}

func (r *rings) first() int { return int(r.queue[r.head]) }

func (r *rings) take() int {
	ch := r.first()
	r.head = (r.head + 1) % len(r.queue)
	r.n--
	r.queued &^= 1 << ch
	return ch
}

func (r *rings) put(ch int) {
	if r.queued>>ch&1 != 0 {
		return
	}
	r.queue[(r.head+r.n)%len(r.queue)] = uint8(ch)
	r.n++
	r.queued |= 1 << ch
}

// announceLocked announces channel ch to pfd. It never waits: if every way is busy, later calls or
// the background goroutine announce the channel.
func (e *Endpoint) announceLocked(ch int) {
	r := &e.rings
	r.put(ch)
	e.ringLocked()
	if r.n > 0 && !r.served {
		r.served = true
		e.workers.Go(e.ringOn)
	}
}

// ringLocked announces as many pending channels as it can: one through the doorbell word (001
// §3.3, the fast path), the others by messages. If no other is pending, it announces the one in
// the doorbell word by a message as well (spec/hardware.md, doorbell page); the transfer starts
// only once.
func (e *Endpoint) ringLocked() {
	r := &e.rings
	rung := false
	if r.n > 0 && e.pages.Ring(r.first()) {
		rung = true
		if ch := r.take(); r.n == 0 {
			e.sendRingLocked(ch)
		}
	}
	for r.n > 0 && e.sendRingLocked(r.first()) {
		rung = true
		r.take()
	}
	r.some.Store(r.n > 0)
	if rung {
		e.kickLocked()
	}
}

// sendRingLocked announces a channel through the packetizer (opcode 3 to mailbox 1). It returns
// false if the packetizer's channels are busy.
func (e *Endpoint) sendRingLocked(ch int) bool {
	word := mailbox.Doorbell{
		PDID:    e.welcome.PDID,
		Channel: uint16(e.welcome.Slot)*device.ChannelsPerSlot + uint16(ch),
	}.Encode()
	for c := range faultSend {
		if e.sendLocked(c, packetizer.Destination(e.welcome.Node, device.MailboxRequest, 0), 0, []uint64{word}) {
			return true
		}
	}
	return false
}

// ringOn retries until no channel is pending or the attachment has ended: the process may call
// neither Write nor Poll.
func (e *Endpoint) ringOn() {
	var p pauses
	timer := time.NewTimer(p.next())
	defer timer.Stop()
	for {
		select {
		case <-e.over:
			return
		case <-timer.C:
		}
		e.mu.Lock()
		waited := e.rings.n
		e.ringLocked()
		e.kickLocked() // also for a channel that was announced and not read
		left := e.rings.n
		if left == 0 {
			e.rings.served = false
		}
		e.mu.Unlock()
		if left == 0 {
			return
		}
		if left < waited {
			p = pauses{}
		}
		timer.Reset(p.next())
	}
}

// Times of a wait for pfd to read the pages, at the end of which nothing wakes the caller. Values
// below are defined by this project.
const (
	firstPause = 50 * time.Microsecond
	lastPause  = 100 * time.Millisecond
)

// pauses are the sleeps of such a wait. pfd usually reads within microseconds, but it may be
// stopped or need this processor. Each pause is an eighth longer than the one before, so the wait
// lasts at most an eighth too long.
type pauses struct{ last time.Duration }

func (p *pauses) next() time.Duration {
	p.last = min(max(p.last+p.last/8, firstPause), lastPause)
	return p.last
}
