package queues

import "github.com/exanet/pfd/device"

// Messages reports whether messages of processes go through the queues, and come with their events.
// A message of more words than an event has still waits in its mailbox, and Config.Mail tells of it.
func (q *Queues) Messages() bool {
	return q.takes && q.cfg.Message != nil && q.events && q.commands.on
}

// Answer ends an operation that Config.Called has been called for. It returns false if there is no room:
// try again later.
func (q *Queues) Answer(id uint32, status uint8, value uint64) bool {
	return q.command(&device.Command{Kind: device.CommandAnswer, Index: status, Address: uint64(id), Value: value})
}

// SendMessage makes a channel of a packetizer send a message of a process, which is told of a refusal
// by its number, not 0. It returns false if there is no room: use the registers.
func (q *Queues) SendMessage(page, channel uint8, destination uint64, number uint16, words []uint64) bool {
	cmd := device.Command{Kind: device.CommandSend, Index: page, Channel: channel, Count: uint8(len(words)), Number: number, Destination: destination}
	if copy(cmd.Words[:], words) == len(words) {
		return q.command(&cmd)
	}
	more := device.Command{Kind: device.CommandPayload, Index: page, Channel: channel}
	copy(more.Words[:], words[device.EntryWords:])
	return q.command(&more, &cmd)
}

// Hold changes whether messages wait in their mailbox instead of going into events. Those that the
// device has written by then still come.
func (q *Queues) Hold(mailbox int, hold bool) {
	v := q.boxes[mailbox]
	if v&device.CfgEnable == 0 {
		return
	}
	if !hold {
		v |= device.MboxEvents
	}
	q.lost(q.raw(device.PL).Write64(device.PLMboxCfg+8*uint32(mailbox), v))
}

// configure notes a write of the driver to a register of window pl, and returns the value to write.
func (q *Queues) configure(off uint32, v uint64) uint64 {
	const (
		processes = device.PLMboxCfg + 8*device.MailboxProcess
		threads   = device.PLPktzProt + 8*device.MailboxThread
	)
	switch {
	case off >= device.PLPDCfg && off < device.PLPDCfg+8*device.Slots && off%8 == 0:
		_, generation, on := device.SplitPDCfg(v)
		if !on {
			generation = 0
		}
		q.generations[(off-device.PLPDCfg)/8] = generation
	case off >= threads && off < device.PLPktzProt+8*device.Interfaces && off%8 == 0:
		_, slot := device.SplitPktzProt(v)
		q.slots[(off-device.PLPktzProt)/8] = uint8(slot)
	case off >= processes && off < device.PLMboxCfg+8*device.Interfaces && off%8 == 0:
		q.boxes[(off-device.PLMboxCfg)/8] = v
		if v&device.CfgEnable != 0 && q.takes && q.cfg.Message != nil {
			v |= device.MboxEvents
		}
	}
	return v
}
