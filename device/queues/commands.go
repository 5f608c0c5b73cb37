package queues

import "github.com/exanet/pfd/device"

// free gives how many commands there is room for.
func (q *Queues) free() uint32 { return entries - mod(q.prod-q.taken) }

// put writes a command, for which there must be room; the phase comes last.
func (q *Queues) put(c *device.Command) {
	e := c.Encode()
	for w := len(e) - 1; w > 0; w-- {
		q.cfg.Memory.Store(q.word(commandsAt, q.prod, w), e[w])
	}
	q.cfg.Memory.Store(q.word(commandsAt, q.prod, 0), e[0]|phase(q.prod))
	q.prod = mod(q.prod + 1)
	q.stats.Commands++
}

// command puts a command and has the doorbell rung. False: there is no room. The
// last place is for a NOP, whose event tells that there is some again.
func (q *Queues) command(c *device.Command) bool {
	if q.free() < 2 {
		return false
	}
	q.put(c)
	if q.free() == 1 {
		q.put(&device.Command{Kind: device.CommandNop})
	}
	if !q.belled {
		q.belled = true
		q.cfg.Later(q.bell)
	}
	return true
}

// ring has the device look.
func (q *Queues) ring() {
	q.stats.Bells++
	if q.cfg.Bell != nil {
		q.lost(q.cfg.Bell())
		return
	}
	q.lost(q.raw(device.PL).Write32(device.PLCommandQueue+device.QueueDoorbell, 1))
}

// writePacketizer takes what the driver writes into a packetizer of its own. True:
// it is done.
func (q *Queues) writePacketizer(off uint32, v uint64) (bool, error) {
	page, ch := off/device.PageSize, off%device.PageSize/device.PktzChannelStride
	if page >= ownPages || !q.commands {
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
	for len(q.waiting) > 0 && q.commands {
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
