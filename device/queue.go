package device

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Registers of the queues in memory, in window pl (docs/spec/queues.md; defined by this project).
// Both queues have the same offsets, from PLEventQueue and PLCommandQueue.
const (
	PLEventQueue   = 0x1200
	PLCommandQueue = 0x1300

	QueueBase     = 0x00 // RW 64 bits, DMA address [63:12]
	QueueSize     = 0x08 // RW log2 of the entries [3:0]
	QueueCtrl     = 0x0c // QueueTurnOn, QueueTurnOff
	QueueProd     = 0x10 // RO, EVTQ; in CMDQ this is CONS
	QueueCons     = 0x14 // RW, EVTQ
	QueueStatus   = 0x18 // QueueIsOn, QueueErr…
	QueueDoorbell = 0x20 // CMDQ

	QueueTurnOn  = 1 << 0
	QueueTurnOff = 1 << 1

	QueueIsOn       = 1 << 0
	QueueErrConfig  = 1 << 4 // SIZE out of range, or the ring exceeds the address space
	QueueErrAccess  = 1 << 5 // the ring cannot be read or written
	QueueErrIndex   = 1 << 6 // CONS covers entries that were not written
	QueueErrChanged = 1 << 7 // BASE or SIZE written while enabled
	QueueErrors     = QueueErrConfig | QueueErrAccess | QueueErrIndex | QueueErrChanged

	// DoorbellCons in a value written to CMDQ_DOORBELL: [15:0] is EVTQ_CONS. DoorbellTakes in a
	// value read from it: the device supports DoorbellCons. DoorbellMail: it has EventMessage,
	// CommandPayload, and numbers in CommandSend.
	DoorbellCons  = 1 << 31
	DoorbellTakes = 1 << 30
	DoorbellMail  = 1 << 29

	QueueMinLog    = 4
	QueueMaxLog    = 12
	QueueEntrySize = 64
)

// QueueEntry is an entry of either queue: eight words.
type QueueEntry [QueueEntrySize / 8]uint64

// QueuePhase is the phase bit of word 0 (docs/spec/queues.md; defined by this project).
const QueuePhase = 1 << 0

// Put stores an entry as its 64 bytes in memory.
func (e *QueueEntry) Put(b []byte) {
	for i, w := range e {
		binary.LittleEndian.PutUint64(b[8*i:], w)
	}
}

// QueueEntryOf decodes an entry from 64 bytes.
func QueueEntryOf(b []byte) (e QueueEntry) {
	for i := range e {
		e[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return e
}

// EventKind is the type of an event in the event queue (docs/spec/queues.md; defined by this
// project).
type EventKind uint8

// The events.
const (
	EventFault    EventKind = iota + 1 // a page-fault FIFO's entry: TX, Lost, Words, Ext
	EventBank                          // Index, Status, Syndrome, Address
	EventGlobal                        // Status, Address
	EventMail                          // Index: the mailbox
	EventDone                          // Index, Channel, Code, Status: slot, channel, status, done
	EventWords                         // Index, Address: slot, VA
	EventRefused                       // Index, Channel: interface and channel
	EventNop                           // Cookie
	EventError                         // Code, Cookie: Command…, word 0 of the command
	EventOverflow                      // Cookie: one bit per kind
	EventMessage                       // Index, Generation, Cookie, Message: mailbox, its domain's, SOURCE, words
	EventWant                          // Address: a page that is wanted and not present
	EventCall                          // Cookie, Message: ID, words of a request that the driver performs
	eventKinds
)

// Codes of EventError (docs/spec/queues.md; defined by this project).
const (
	CommandInvalid = 1 // unknown kind, or a field out of range
	CommandAccess  = 2 // SYNC's word could not be stored
	CommandOff     = 3 // an error has disabled the command queue
	CommandSyncs   = 4 // too many SYNCs are waiting
)

// Event is one entry of the event queue. Fields that its kind does not use are zero.
type Event struct {
	Kind     EventKind
	Commands uint16 // CMDQ_CONS
	TX, Lost bool
	Index    uint8
	Channel  uint8
	Code     uint8
	Words    [4]uint32
	Ext      uint32
	Status   uint32
	Syndrome uint32
	Address  uint64
	Cookie   uint64
	Message  [EntryWords]uint64
	// Generation has EventGenerationMask.
	Generation Generation
}

// ErrQueueEntry means that an entry is invalid: its kind is unknown, or a field is out of range.
// Its writer is faulty or hostile.
var ErrQueueEntry = errors.New("bad queue entry")

// Shifts in word 0 (docs/spec/queues.md; defined by this project).
const (
	entryKind    = 8
	entryTaken   = 16 // of an event
	entryNumber  = 16 // of a command
	entryIndex   = 32
	entryChannel = 40
	entryCode    = 48 // of an event
	entryCount   = 48 // of a command

	entryGeneration = 40 // of a message, to the end of the word

	entryTX   = 1 << 32
	entryLost = 1 << 33
)

// Encode returns the event as an entry, with the phase bit clear.
func (e *Event) Encode() (q QueueEntry) {
	q[0] = uint64(e.Kind)<<entryKind | uint64(e.Commands)<<entryTaken
	index := uint64(e.Index) << entryIndex
	switch e.Kind {
	case EventFault:
		if e.TX {
			q[0] |= entryTX
		}
		if e.Lost {
			q[0] |= entryLost
		}
		q[1] = uint64(e.Words[0]) | uint64(e.Words[1])<<32
		q[2] = uint64(e.Words[2]) | uint64(e.Words[3])<<32
		q[3] = uint64(e.Ext)
	case EventBank:
		q[0] |= index
		q[1], q[2] = uint64(e.Status)|uint64(e.Syndrome)<<32, e.Address
	case EventGlobal:
		q[1], q[2] = uint64(e.Status), e.Address
	case EventMail:
		q[0] |= index
	case EventDone:
		q[0] |= index | uint64(e.Channel)<<entryChannel | uint64(e.Code)<<entryCode
		q[1] = uint64(e.Status)
	case EventWords:
		q[0] |= index
		q[1] = e.Address
	case EventRefused:
		q[0] |= index | uint64(e.Channel)<<entryChannel
	case EventNop, EventOverflow:
		q[1] = e.Cookie
	case EventMessage:
		q[0] |= index | uint64(e.Generation)<<entryGeneration
		q[1] = e.Cookie
		copy(q[2:], e.Message[:])
	case EventWant:
		q[1] = e.Address
	case EventCall:
		q[1] = e.Cookie
		copy(q[2:], e.Message[:])
	case EventError:
		q[0] |= uint64(e.Code) << entryIndex
		q[1] = e.Cookie
	}
	return q
}

// DecodeEvent decodes an entry of the event queue. Its error matches ErrQueueEntry.
func DecodeEvent(q *QueueEntry) (Event, error) {
	e := Event{Kind: EventKind(q[0] >> entryKind), Commands: uint16(q[0] >> entryTaken)}
	index, limit := uint8(q[0]>>entryIndex), 0
	switch e.Kind {
	case EventFault:
		e.TX, e.Lost = q[0]&entryTX != 0, q[0]&entryLost != 0
		e.Words = [4]uint32{uint32(q[1]), uint32(q[1] >> 32), uint32(q[2]), uint32(q[2] >> 32)}
		e.Ext = uint32(q[3])
		return e, nil
	case EventBank:
		limit = Slots
		e.Status, e.Syndrome, e.Address = uint32(q[1]), uint32(q[1]>>32), q[2]
	case EventGlobal:
		e.Status, e.Address = uint32(q[1]), q[2]
		return e, nil
	case EventMail:
		limit = Interfaces
	case EventDone:
		limit = Slots
		e.Channel, e.Code, e.Status = uint8(q[0]>>entryChannel), uint8(q[0]>>entryCode), uint32(q[1])
		if e.Channel >= ChannelsPerSlot {
			return Event{}, fmt.Errorf("%w: event %d of channel %d", ErrQueueEntry, e.Kind, e.Channel)
		}
	case EventWords:
		limit = Slots
		e.Address = q[1]
	case EventRefused:
		limit = Interfaces
		e.Channel = uint8(q[0]>>entryChannel) % PktzChannels
	case EventMessage:
		limit = Interfaces
		e.Generation, e.Cookie = Generation(q[0]>>entryGeneration), q[1]
		copy(e.Message[:], q[2:])
	case EventNop, EventOverflow:
		e.Cookie = q[1]
		return e, nil
	case EventWant:
		if e.Address = q[1]; e.Address > pageMask {
			return Event{}, fmt.Errorf("%w: event %d of page 0x%x", ErrQueueEntry, e.Kind, e.Address)
		}
		return e, nil
	case EventCall:
		e.Cookie = q[1]
		copy(e.Message[:], q[2:])
		return e, nil
	case EventError:
		e.Code, e.Cookie = index, q[1]
		return e, nil
	default:
		return Event{}, fmt.Errorf("%w: event of kind %d", ErrQueueEntry, e.Kind)
	}
	if e.Index = index; int(index) >= limit {
		return Event{}, fmt.Errorf("%w: event %d has index %d, the limit is %d", ErrQueueEntry, e.Kind, index, limit)
	}
	return e, nil
}

// CommandKind is the type of a command in the command queue (docs/spec/queues.md; defined by this
// project).
type CommandKind uint8

// The commands.
const (
	CommandSend       CommandKind = iota + 1 // Index, Channel, Count, Number, Destination, Words
	CommandDoorbell                          // Index, Channel: slot and channel
	CommandInvalidate                        // Index, Page, Pages
	CommandSync                              // Index, Address, Value
	CommandNop                               // Value: the cookie
	CommandPayload                           // Index, Channel, Words[:2]: u64s 6 and 7 of the CommandSend that follows
	CommandAnswer                            // Index, Address, Value: status, ID and value for an EventCall
)

// EntryWords is the number of u64 of a message that an entry carries; SyncAll is the bank of a SYNC
// that waits for all banks (defined by this project).
const (
	EntryWords = 6
	SyncAll    = 0xff
)

// EventGenerationMask selects the bits of a generation that an EventMessage has (defined by this
// project).
const EventGenerationMask Generation = 1<<24 - 1

// Command is one entry of the command queue. Fields that its kind does not use are zero.
type Command struct {
	Kind        CommandKind
	Index       uint8 // interface, slot or bank
	Channel     uint8
	Count       uint8  // words of a CommandSend
	Number      uint16 // of its message, which the sender is told if it is refused; 0: none
	Destination uint64
	Words       [EntryWords]uint64
	Page, Pages uint64
	Address     uint64
	Value       uint64
}

// Encode returns the command as an entry, with the phase bit clear.
func (c *Command) Encode() (q QueueEntry) {
	q[0] = uint64(c.Kind) << entryKind
	index := uint64(c.Index) << entryIndex
	switch c.Kind {
	case CommandSend:
		q[0] |= uint64(c.Number)<<entryNumber | index | uint64(c.Channel)<<entryChannel | uint64(c.Count)<<entryCount
		q[1] = c.Destination
		copy(q[2:], c.Words[:min(c.Count, EntryWords)])
	case CommandPayload:
		q[0] |= index | uint64(c.Channel)<<entryChannel
		copy(q[1:], c.Words[:PktzMaxWords-EntryWords])
	case CommandDoorbell:
		q[0] |= index | uint64(c.Channel)<<entryChannel
	case CommandInvalidate:
		q[0] |= index
		q[1], q[2] = c.Page, c.Pages
	case CommandSync, CommandAnswer:
		q[0] |= index
		q[1], q[2] = c.Address, c.Value
	case CommandNop:
		q[1] = c.Value
	}
	return q
}

// DecodeCommand decodes an entry of the command queue. Its error matches ErrQueueEntry.
func DecodeCommand(q *QueueEntry) (Command, error) {
	c := Command{Kind: CommandKind(q[0] >> entryKind)}
	index, channel := uint8(q[0]>>entryIndex), uint8(q[0]>>entryChannel)
	ok := false
	switch c.Kind {
	case CommandSend:
		c.Index, c.Channel, c.Count = index, channel&(PktzChannels-1), uint8(q[0]>>entryCount)&0xf
		if ok = index < Interfaces && c.Count > 0 && c.Count <= PktzMaxWords; ok {
			c.Number, c.Destination = uint16(q[0]>>entryNumber), q[1]
			copy(c.Words[:min(c.Count, EntryWords)], q[2:])
		}
	case CommandPayload:
		c.Index, c.Channel = index, channel&(PktzChannels-1)
		ok = index < Interfaces
		copy(c.Words[:PktzMaxWords-EntryWords], q[1:])
	case CommandDoorbell:
		c.Index, c.Channel = index, channel
		ok = index < Slots && channel < ChannelsPerSlot
	case CommandInvalidate:
		c.Index, c.Page, c.Pages = index, q[1], q[2]
		ok = index < Slots
	case CommandSync:
		c.Index, c.Address, c.Value = index, q[1], q[2]
		ok = (index < Slots || index == SyncAll) && c.Address%8 == 0
	case CommandAnswer:
		c.Index, c.Address, c.Value = index, q[1], q[2]
		ok = true
	case CommandNop:
		c.Value = q[1]
		ok = true
	}
	if !ok {
		return Command{}, fmt.Errorf("%w: command of kind %d, word 0 0x%x", ErrQueueEntry, c.Kind, q[0])
	}
	return c, nil
}
