package rdma

import (
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

// rings are the channels whose announcement waits: the doorbell word and the
// packetizer's channels take only a few until pfd has looked. All but some is
// under the endpoint's lock.
type rings struct {
	queue   [device.WriteChannels]uint8 // from head on, n of them
	head, n int
	queued  uint32      // a bit for each that is in queue
	some    atomic.Bool // n > 0: for a look without the lock
	served  bool        // a goroutine tries again
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

// announceLocked announces channel ch to pfd. It never waits: what finds every
// way taken is announced by later calls, or in the background.
func (e *Endpoint) announceLocked(ch int) {
	r := &e.rings
	r.put(ch)
	e.ringLocked()
	if r.n > 0 && !r.served {
		r.served = true
		e.workers.Go(e.ringOn)
	}
}

// ringLocked announces as many of the channels that wait as it can: one by the
// doorbell word (001 §3.3, the fast path), the others by messages. Where no other
// waits the one in the doorbell word is announced by a message as well
// (spec/hardware.md, doorbell page); its transfer starts once.
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

// sendRingLocked announces a channel by the packetizer (opcode 3 to mailbox 1);
// false: its channels are busy.
func (e *Endpoint) sendRingLocked(ch int) bool {
	word := mailbox.Doorbell{
		PDID:    e.welcome.PDID,
		Channel: uint16(e.welcome.Slot)*device.ChannelsPerSlot + uint16(ch),
	}.Encode()
	for c := range faultSend {
		if e.pages.Send(c, e.welcome.Node, device.MailboxRequest, word) {
			e.reads.taken(c)
			return true
		}
	}
	return false
}

// ringOn tries again until nothing waits or the attachment is over: neither Write nor
// Poll may come.
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
		e.kickLocked() // also for what was announced and not taken
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

// Times of a wait for pfd to take what stands in the pages (ours): nothing wakes it.
const (
	firstPause = 50 * time.Microsecond
	lastPause  = 100 * time.Millisecond
)

// pauses are the sleeps of such a wait. pfd takes things within microseconds, but it may be
// stopped, or need this very processor: each pause is longer than the one before by an
// eighth, and so is the whole wait at most.
type pauses struct{ last time.Duration }

func (p *pauses) next() time.Duration {
	p.last = min(max(p.last+p.last/8, firstPause), lastPause)
	return p.last
}
