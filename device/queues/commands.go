package queues

import (
	"math/bits"
	"sync"

	"github.com/exanet/pfd/device"
)

// commands is the command queue. It has a lock of its own: whoever takes pages from
// the device has it forget them on a goroutine of its own.
type commands struct {
	mu          sync.Mutex
	on          bool   // in use; only the windows' owner changes it
	prod, taken uint32 // commands put, and taken by the device; modulo 2 * entries
	words       uint16 // a bit a word of a SYNC that is in use
	last, since uint64 // value of the last SYNC, each has its own, and as the queue was turned on
	put, bells  uint64
}

// maxWords is how many SYNCs wait at one time, half of what the device takes (ours).
const maxWords = 16

func (c *commands) set(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on, c.prod, c.taken, c.since = on, 0, 0, c.last
}

// took takes how far the device has come, if that can be. mu is held.
func (c *commands) took(n uint32) {
	if mod(n) == n && mod(c.prod-n) <= mod(c.prod-c.taken) {
		c.taken = n
	}
}

// add writes commands, one behind the other, each with its phase last. False: there is
// no room. The last place is for a NOP, whose event tells that there is some again.
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

// Invalidation is one that the device was asked for.
type Invalidation struct {
	word  uint16 // its bit
	value uint64
	end   uint32 // the commands behind its own begin there
}

// Invalidate has the device forget pages of a bank, 0 all of them, and then tell when
// no access of the bank is in flight: Forgotten says so, and Release must follow. ok
// false: the queue is off or full, and the registers do it. Any goroutine may call
// it; Write32 of window pl is called there.
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
	// Not by Bell, whose order among the driver's own commands is the owner's.
	if ok && q.raw(device.PL).Write32(device.PLCommandQueue+device.QueueDoorbell, 1) != nil {
		q.Release(v)
		ok = false
	}
	return v, ok
}

func wordAt(i int) uint32 { return wordsAt + 8*uint32(i) }

// Forgotten tells whether an invalidation is over. ok false: it may never be, for
// the queue is off. Any goroutine may call it.
func (q *Queues) Forgotten(v Invalidation) (over, ok bool) {
	c := &q.commands
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.on || v.value <= c.since {
		return false, false
	}
	over = q.cfg.Memory.Load(wordAt(bits.TrailingZeros16(v.word))) == v.value
	if over {
		c.took(v.end) // all until here
	}
	return over, true
}

// Release ends an invalidation. Any goroutine may call it.
func (q *Queues) Release(v Invalidation) {
	q.commands.mu.Lock()
	defer q.commands.mu.Unlock()
	q.commands.words &^= v.word
}

// command puts a command and has the doorbell rung. False: there is no room.
func (q *Queues) command(c *device.Command) bool {
	if !q.commands.add(q.cfg.Memory, c) {
		return false
	}
	if !q.belled {
		q.belled = true
		q.cfg.Later(q.bell)
	}
	return true
}

// ring has the device look.
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

// writePacketizer takes what the driver writes into a packetizer of its own. True:
// it is done.
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

// request tells whether a message is one that the queue carries: a RAPF, or another
// of one word for an R5. Other senders want to know at once whether they are refused,
// and what they write before and after it must be in order.
func request(destination, words uint64) bool {
	return words == 1 && destination>>24&0xff == device.MailboxRequest
}

func (q *Queues) send(w waiting) bool {
	c := &q.pages[w.page][w.channel]
	cmd := device.Command{Kind: device.CommandSend, Index: w.page, Channel: w.channel, Count: 1, Destination: c.destination}
	cmd.Words[0] = c.payload[0]
	return q.command(&cmd)
}

// flush sends the messages that wait, as far as there is room.
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

// sendWords sends a message as without a queue.
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
