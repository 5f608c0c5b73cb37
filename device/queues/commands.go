package queues

import (
	"math/bits"
	"sync"

	"github.com/exanet/pfd/device"
)

// commands is the command queue. It has its own lock, because invalidations run on the goroutines
// that unmap pages.
type commands struct {
	mu          sync.Mutex
	on          bool   // enabled; changed only by the windows' owner
	prod, taken uint32 // commands written, and taken by the device; modulo 2 * entries
	words       uint16 // one bit per word of a SYNC in use
	last, since uint64 // value of the last SYNC (each has its own), and its value when the queue was enabled
	put, bells  uint64
}

// maxWords is the number of SYNCs that may wait at a time, half of the device's limit (defined by
// this project).
const maxWords = 16

func (c *commands) set(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on, c.prod, c.taken, c.since = on, 0, 0, c.last
}

// took records how many commands the device has taken, if n is plausible. mu is held.
func (c *commands) took(n uint32) {
	if mod(n) == n && mod(c.prod-n) <= mod(c.prod-c.taken) {
		c.taken = n
	}
}

// add writes commands in order, each with its phase last. It returns false if there is no room.
// The last place is reserved for a NOP, whose event reports that there is room again.
func (c *commands) add(m Memory, list ...*device.Command) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.write(m, list...)
}

func (c *commands) free() uint32 { return entries - mod(c.prod-c.taken) }

func (c *commands) write(m Memory, list ...*device.Command) bool {
	if !c.on || c.free() <= uint32(len(list)) {
		return false
	}
	for _, cmd := range list {
		c.entry(m, cmd)
	}
	if c.free() == 1 {
		c.entry(m, &device.Command{Kind: device.CommandNop})
	}
	return true
}

func (c *commands) entry(m Memory, cmd *device.Command) {
	e := cmd.Encode()
	for w := len(e) - 1; w > 0; w-- {
		m.Store(word(commandsAt, c.prod, w), e[w])
	}
	m.Store(word(commandsAt, c.prod, 0), e[0]|phase(c.prod))
	c.prod = mod(c.prod + 1)
	c.put++
}

// Invalidation is an invalidation requested from the device.
type Invalidation struct {
	word  uint16 // its bit
	value uint64
	end   uint32 // index after its commands
}

// Invalidate asks the device to drop pages of a bank from its TLB, all if pages is 0, and to
// report when no access of the bank is in flight. Invalidated reports that; the caller must then
// call Release. ok false means that the queue is disabled or full: use the registers. Any
// goroutine may call it; it calls Write32 of window pl.
func (q *Queues) Invalidate(bank int, page, pages uint64) (v Invalidation, ok bool) {
	c := &q.commands
	c.mu.Lock()
	i := bits.TrailingZeros16(^c.words)
	v = Invalidation{word: 1 << i, value: c.last + 1, end: mod(c.prod + 2)}
	ok = i < maxWords && c.write(q.cfg.Memory,
		&device.Command{Kind: device.CommandInvalidate, Index: uint8(bank), Page: page, Pages: pages},
		&device.Command{Kind: device.CommandSync, Index: uint8(bank), Address: q.cfg.Addr + uint64(wordAt(i)), Value: v.value})
	if ok {
		c.words |= v.word
		c.last++
		c.bells++
	}
	c.mu.Unlock()
	// Not through Bell, which the owner orders among the driver's own commands.
	if ok && q.raw(device.PL).Write32(device.PLCommandQueue+device.QueueDoorbell, 1) != nil {
		q.Release(v)
		ok = false
	}
	return v, ok
}

func wordAt(i int) uint32 { return wordsAt + 8*uint32(i) }

// Invalidated reports whether an invalidation has completed. ok false means that it may never
// complete, because the queue is disabled. Any goroutine may call it.
func (q *Queues) Invalidated(v Invalidation) (over, ok bool) {
	c := &q.commands
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.on || v.value <= c.since {
		return false, false
	}
	over = q.cfg.Memory.Load(wordAt(bits.TrailingZeros16(v.word))) == v.value
	if over {
		c.took(v.end) // all commands up to here
	}
	return over, true
}

// Release frees an invalidation. Any goroutine may call it.
func (q *Queues) Release(v Invalidation) {
	q.commands.mu.Lock()
	defer q.commands.mu.Unlock()
	q.commands.words &^= v.word
}

// command writes commands and schedules the doorbell. It returns false if there is no room.
func (q *Queues) command(list ...*device.Command) bool {
	if !q.commands.add(q.cfg.Memory, list...) {
		return false
	}
	if !q.belled {
		q.belled = true
		q.cfg.Later(q.bell)
	}
	return true
}

// ring rings the device's doorbell.
func (q *Queues) ring() {
	q.commands.mu.Lock()
	q.commands.bells++
	q.commands.mu.Unlock()
	if q.cfg.Bell != nil {
		q.lost(q.cfg.Bell())
		return
	}
	v := uint32(1)
	if q.bellCons {
		v, q.told = device.DoorbellCons|q.cons, q.cons
	}
	q.lost(q.raw(device.PL).Write32(device.PLCommandQueue+device.QueueDoorbell, v))
}

// writePacketizer handles a write of the driver to one of pfd's packetizers. It returns true if
// the write is complete.
func (q *Queues) writePacketizer(off uint32, v uint64) (bool, error) {
	page, ch := off/device.PageSize, off%device.PageSize/device.PktzChannelStride
	if page >= ownPages || !q.commands.on {
		return false, nil
	}
	c := &q.pages[page][ch]
	switch at := off % device.PktzChannelStride; {
	case at == device.PktzDestination:
		c.destination = v
	case at >= device.PktzPayload && at < device.PktzSend && at%8 == 0:
		c.payload[(at-device.PktzPayload)/8] = v
	case at == device.PktzSend:
		w := waiting{uint8(page), uint8(ch)}
		c.status, c.direct = device.PktzFree, !request(c.destination, v)
		switch {
		case c.direct:
			return true, q.sendWords(w, v)
		case len(q.waiting) > 0 || !q.send(w):
			c.status = device.PktzBusy
			q.waiting = append(q.waiting, w)
		}
	default:
		return false, nil
	}
	return true, nil
}

// request reports whether a message is sent through the queue: a RAPF, or another message of one
// word for an R5. Other senders need to know at once whether they are refused, and their messages
// must stay in order with register writes before and after.
func request(destination, words uint64) bool {
	return words == 1 && destination>>24&0xff == device.MailboxRequest
}

func (q *Queues) send(w waiting) bool {
	c := &q.pages[w.page][w.channel]
	cmd := device.Command{Kind: device.CommandSend, Index: w.page, Channel: w.channel, Count: 1, Destination: c.destination}
	cmd.Words[0] = c.payload[0]
	return q.command(&cmd)
}

// flush sends the waiting messages while there is room.
func (q *Queues) flush() {
	for len(q.waiting) > 0 && q.commands.on {
		w := q.waiting[0]
		c := &q.pages[w.page][w.channel]
		if !q.send(w) {
			return
		}
		c.status = device.PktzFree
		q.waiting = q.waiting[:copy(q.waiting, q.waiting[1:])]
	}
}

// sendWords sends a message through the registers.
func (q *Queues) sendWords(w waiting, words uint64) error {
	c, to := &q.pages[w.page][w.channel], q.raw(device.PKTZ)
	base := uint32(w.page)*device.PageSize + uint32(w.channel)*device.PktzChannelStride
	if err := to.Write64(base+device.PktzDestination, c.destination); err != nil {
		return err
	}
	for i := range min(words, device.PktzMaxWords) {
		if err := to.Write64(base+device.PktzPayload+8*uint32(i), c.payload[i]); err != nil {
			return err
		}
	}
	return to.Write64(base+device.PktzSend, words)
}
