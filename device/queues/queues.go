// Package queues is the driver's side of the queues in memory (docs/spec/queues.md). It is placed
// between a driver and the windows of its node: the driver finds the contents of the event queue
// in the registers that would hold them, and messages of pfd's packetizers go into the command
// queue. So one driver works both ways, and with queues it reads no register of the device.
//
// If the event queue breaks, the driver returns to the registers: an event was removed from them
// only after it had been written to the queue.
package queues

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/exanet/pfd/device"
)

// Sizes of the rings (defined by this project).
const (
	logEntries = 8
	entries    = 1 << logEntries
	// Entries is the number of entries of each ring.
	Entries  = entries
	ringSize = entries * device.QueueEntrySize

	eventsAt   = 0
	commandsAt = ringSize
	wordsAt    = 2 * ringSize // of SYNCs
	// MemorySize is the size of the two rings and the words of SYNCs, in bytes.
	MemorySize = wordsAt + device.PageSize

	ownPages = device.MailboxProcess // packetizers 0..15 belong to pfd
)

// Memory is the rings' memory, MemorySize bytes shared with the device. Each call is one atomic
// access of 64 bits at an offset that is a multiple of 8. Any goroutine may call it.
type Memory interface {
	Load(offset uint32) uint64
	Store(offset uint32, v uint64)
}

// ErrOff means that the device did not enable a queue.
var ErrOff = errors.New("the device's queue in memory is off")

// Config configures Queues. All functions are called on the goroutine that owns the windows,
// except as Invalidate documents.
type Config struct {
	Window func(device.WindowID) device.Window // the device's own
	Memory Memory
	Addr   uint64 // address of Memory for the device, page-aligned
	// Raise is called when vectors wait for Deliver; it must not call Deliver itself.
	Raise func()
	// Later runs f soon on the owning goroutine. One doorbell announces all commands until then.
	Later func(f func())
	// Bell rings CMDQ_DOORBELL by other means; nil: through its register.
	Bell func() error
	// Written, Done and Mail are called for the events that are not faults; each may be nil.
	// After events were lost they are called with -1, for all.
	Written func(slot int, va device.VA)
	Done    func(slot int)
	Mail    func(mailbox int)
	// Message is called for each message to a process, with its SOURCE. nil: they stay in their
	// mailboxes.
	Message func(mailbox int, source uint64, words *[device.EntryWords]uint64)
	// Refused is called for each message of the command queue that was refused, with its interface and
	// channel. Wanted is called for a page that the GSAS unit wants, and Called for an operation that the
	// driver performs, with the words of its request: Answer ends it. Each may be nil.
	Refused func(iface, channel int)
	Wanted  func(page uint64)
	Called  func(id uint32, words *[device.EntryWords]uint64)
	// Off is called when an error or a reset has disabled the queues; it may be nil. Renew
	// enables them again later.
	Off func()
	Log *slog.Logger // nil: none
}

// Stats are the counters.
type Stats struct {
	Events   uint64 // taken from the event queue
	Bad      uint64 // of these, invalid ones
	Lost     uint64 // overflow events
	Refused  uint64 // messages of the command queue that were refused
	Errors   uint64 // commands in error
	Commands uint64 // written to the command queue
	Bells    uint64 // doorbells rung
	Breaks   uint64 // errors that disabled a queue
}

// Queues are the queues of one node. They belong to the goroutine that owns the windows, except
// Invalidate, Invalidated and Release.
type Queues struct {
	cfg         Config
	windows     [device.Windows]window
	again, bell func() // arguments of Later, allocated once
	commands    commands
	stats       Stats
	takes       bool                            // the device takes messages of processes, and tells of them with their words
	boxes       [device.Interfaces]uint64       // MBOX_CFG of processes, as the driver has written it
	slots       [device.Interfaces]uint8        // of processes and threads
	generations [device.Slots]device.Generation // of the enabled domains
	state
}

// state is the state that Stop clears.
type state struct {
	events     bool   // the event queue is enabled
	cons, told uint32 // events taken, and as last reported to the device; modulo 2 * entries
	broken     bool   // an error has disabled the command queue
	draining   bool   // Later will drain again
	belled     bool   // Later will ring the doorbell
	bellCons   bool   // the doorbell carries cons
	nop        uint64 // cookie of the last NOP requested
	seen       uint64 // cookie of the last NOP reported

	// The registers as the driver sees them.
	status, mask, up uint32
	fifos            [2]fifo // RX, TX
	banks            [device.Slots]bank
	gfsr             uint32
	gfar             uint64
	pages            [ownPages][device.PktzChannels]channel
	waiting          []waiting // messages for which the command queue has no room yet

	warned bool
}

// bank is the content of a context bank's fault registers.
type bank struct {
	fsr, fsynr0 uint32
	far         uint64
}

// channel is the content of a packetizer channel, as written by the driver.
type channel struct {
	destination uint64
	payload     [device.PktzMaxWords]uint64
	status      uint64
	direct      bool // the last message was sent through the registers
}

// waiting identifies a channel whose message waits.
type waiting struct{ page, channel uint8 }

// New returns the queues of a node, disabled: every access goes to the device.
func New(cfg Config) *Queues {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	q := &Queues{cfg: cfg}
	for n := range q.slots {
		q.slots[n] = uint8(n % device.Slots)
	}
	q.again = func() { q.draining = false; q.drain() }
	q.bell = func() {
		if q.belled = false; q.commands.on {
			q.ring()
		}
	}
	for id := range q.windows {
		q.windows[id] = window{q, cfg.Window(device.WindowID(id)), device.WindowID(id)}
	}
	return q
}

// Window returns a window of the node that includes the queues.
func (q *Queues) Window(id device.WindowID) device.Window {
	return device.Window{Access: &q.windows[id]}
}

// Stats returns the counters.
func (q *Queues) Stats() Stats {
	s, c := q.stats, &q.commands
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Commands, s.Bells = c.put, c.bells
	return s
}

// On reports whether the event queue is enabled.
func (q *Queues) On() bool { return q.events }

func (q *Queues) raw(id device.WindowID) device.Window { return q.windows[id].to }

// Start enables both queues. State that a former driver left in the registers arrives as events.
// The device must have CAPS[28]. An error matches ErrOff or device.ErrGone.
func (q *Queues) Start() error {
	q.Stop()
	for off := uint32(0); off < MemorySize; off += 8 {
		q.cfg.Memory.Store(off, 0)
	}
	pl := q.raw(device.PL)
	mask, err := pl.Read32(device.PLIRQMask)
	for i, base := range []uint32{device.PLEventQueue, device.PLCommandQueue} {
		err = errors.Join(err,
			pl.Write32(base+device.QueueCtrl, device.QueueTurnOff),
			pl.Write64(base+device.QueueBase, q.cfg.Addr+uint64(i)*ringSize),
			pl.Write32(base+device.QueueSize, logEntries),
			pl.Write32(base+device.QueueStatus, device.QueueErrors),
			pl.Write32(base+device.QueueCtrl, device.QueueTurnOn))
	}
	// From now on vector 0 reports errors; the driver's own mask is kept here.
	err = errors.Join(err, pl.Write32(device.PLIRQStatus, 1<<device.Vectors-1), pl.Write32(device.PLIRQMask, 0))
	for _, base := range []uint32{device.PLEventQueue, device.PLCommandQueue} {
		s, e := pl.Read32(base + device.QueueStatus)
		if err = errors.Join(err, e); err == nil && s&device.QueueIsOn == 0 {
			err = fmt.Errorf("%w: pl+%#x reads %#x", ErrOff, base+device.QueueStatus, s)
		}
	}
	bell, e := pl.Read32(device.PLCommandQueue + device.QueueDoorbell)
	if err = errors.Join(err, e); err != nil {
		return err
	}
	q.events, q.mask, q.bellCons, q.takes = true, mask, bell&device.DoorbellTakes != 0, bell&device.DoorbellMail != 0
	q.commands.set(true)
	// Mail and completions from before Start cause no event.
	q.status = 1<<device.VectorMailbox | 1<<device.VectorDone
	return nil
}

// Stop makes every access go to the device, which is gone or reset.
func (q *Queues) Stop() {
	q.commands.set(false)
	q.state = state{waiting: q.waiting[:0]}
}

// Renew enables queues again that an error or a reset has disabled; its errors are those of
// Start. It returns false if they are enabled, or if reported faults are not served yet.
func (q *Queues) Renew() (bool, error) {
	if q.events || q.causes() != 0 {
		return false, nil
	}
	if err := q.Start(); err != nil {
		return false, err
	}
	q.anything()
	q.rise()
	return true, nil
}

// anything calls every handler for all, since events were lost in between.
func (q *Queues) anything() {
	call(q.cfg.Mail, -1)
	call(q.cfg.Done, -1)
	if q.cfg.Written != nil {
		q.cfg.Written(-1, 0)
	}
}

// Nop requests an event; Answered reports whether the last one requested has arrived, which shows
// that the device can access this memory.
func (q *Queues) Nop() {
	q.nop++
	if q.commands.add(q.cfg.Memory, &device.Command{Kind: device.CommandNop, Value: q.nop}) {
		q.ring()
	}
}

// Answered drains the event queue and reports whether the last Nop has been answered.
func (q *Queues) Answered() bool {
	q.drain()
	return q.nop > 0 && q.seen == q.nop
}

// Vector handles a vector of the device while the event queue is enabled.
func (q *Queues) Vector(v int) {
	if v == device.VectorFault {
		q.look()
		return
	}
	q.drain()
}

// Deliver passes the pending vectors to a driver.
func (q *Queues) Deliver(h device.Handler) {
	q.latch()
	for v := range device.Vectors {
		bit := uint32(1) << v
		open := q.status &^ q.mask
		if open&bit != 0 && q.up&bit == 0 {
			q.up |= bit
			h.Interrupt(v)
		}
	}
}

// latch latches the causes that hold, and reports whether a vector waits for Deliver.
func (q *Queues) latch() bool {
	if q.fifos[0].level()+q.fifos[1].level() > 0 {
		q.status |= 1 << device.VectorFIFO
	}
	if q.gfsr != 0 {
		q.status |= 1 << device.VectorFault
	}
	for i := range q.banks {
		if q.banks[i].fsr != 0 {
			q.status |= 1 << device.VectorFault
		}
	}
	open := q.status &^ q.mask
	q.up &= open
	return open&^q.up != 0
}

// rise calls Raise if a vector waits.
func (q *Queues) rise() {
	if q.latch() {
		q.cfg.Raise()
	}
}

func word(at, index uint32, w int) uint32 {
	return at + index&(entries-1)*device.QueueEntrySize + 8*uint32(w)
}

func mod(i uint32) uint32 { return i & (2*entries - 1) }

// phase returns the phase bit of the entry at an index.
func phase(index uint32) uint64 { return uint64(index>>logEntries&1 ^ 1) }

// drain handles the events in the queue, at most one ring's worth: a faster writer is continued
// later.
func (q *Queues) drain() {
	if !q.events {
		return
	}
	n := 0
	for ; n < entries && q.room(); n++ {
		at := func(w int) uint32 { return word(eventsAt, q.cons, w) }
		var e device.QueueEntry
		if e[0] = q.cfg.Memory.Load(at(0)); e[0]&device.QueuePhase != phase(q.cons) {
			break
		}
		for w := 1; w < len(e); w++ {
			e[w] = q.cfg.Memory.Load(at(w))
		}
		q.cons = mod(q.cons + 1)
		q.stats.Events++
		q.take(&e)
	}
	if mod(q.cons-q.told) >= entries/2 {
		q.told = q.cons
		q.lost(q.raw(device.PL).Write32(device.PLEventQueue+device.QueueCons, q.cons))
	}
	q.flush()
	if n == entries && !q.draining {
		q.draining = true
		q.cfg.Later(q.again)
	}
	q.rise()
	if q.broken {
		q.broken = false
		q.lost(q.raw(device.PL).Write32(device.PLEventQueue+device.QueueCtrl, device.QueueTurnOff))
		q.look()
	}
}

// room reports whether any event could be stored.
func (q *Queues) room() bool {
	return q.fifos[0].level() < device.FIFODepth && q.fifos[1].level() < device.FIFODepth
}

// take handles one event.
func (q *Queues) take(entry *device.QueueEntry) {
	e, err := device.DecodeEvent(entry)
	if err != nil {
		q.stats.Bad++
		q.warn("an entry of the device's event queue is invalid", "error", err)
		return
	}
	q.commands.mu.Lock()
	q.commands.took(uint32(e.Commands))
	q.commands.mu.Unlock()
	switch e.Kind {
	case device.EventFault:
		f := &q.fifos[0]
		if e.TX {
			f = &q.fifos[1]
		}
		f.push(&e)
	case device.EventBank:
		b := &q.banks[e.Index]
		if b.fsr != 0 {
			b.fsr |= device.FSRMULTI
		} else {
			*b = bank{e.Status, e.Syndrome, e.Address}
		}
	case device.EventGlobal:
		if q.gfsr != 0 {
			q.gfsr |= device.GFSRMULTI
		} else {
			q.gfsr, q.gfar = e.Status, e.Address
		}
	case device.EventMail:
		if e.Index < device.MailboxProcess {
			q.latchAgain(device.VectorMailbox)
		}
		call(q.cfg.Mail, int(e.Index))
	case device.EventMessage:
		// One for an earlier domain of the slot may have been on its way.
		if e.Index >= device.MailboxProcess && q.cfg.Message != nil &&
			q.generations[q.slots[e.Index]]&device.EventGenerationMask == e.Generation {
			q.cfg.Message(int(e.Index), e.Cookie, &e.Message)
		}
	case device.EventDone:
		call(q.cfg.Done, int(e.Index))
	case device.EventWords:
		if q.cfg.Written != nil {
			q.cfg.Written(int(e.Index), device.VA(e.Address))
		}
	case device.EventRefused:
		q.stats.Refused++
		if q.cfg.Refused != nil {
			q.cfg.Refused(int(e.Index), int(e.Channel))
		}
	case device.EventWant:
		if q.cfg.Wanted != nil {
			q.cfg.Wanted(e.Address)
		}
	case device.EventCall:
		if q.cfg.Called != nil {
			q.cfg.Called(uint32(e.Cookie), &e.Message)
		}
	case device.EventNop:
		q.seen = max(q.seen, min(e.Cookie, q.nop))
	case device.EventError:
		q.stats.Errors++
		q.warn("a command of the command queue is in error", "code", e.Code, "word", e.Cookie)
		q.broken = q.broken || e.Code == device.CommandOff
	case device.EventOverflow:
		q.stats.Lost++
		q.latchAgain(device.VectorMailbox)
		q.anything()
	}
}

func call(f func(int), i int) {
	if f != nil {
		f(i)
	}
}

// latchAgain latches a cause that exists only as an event: a new edge.
func (q *Queues) latchAgain(v int) {
	q.status |= 1 << v
	q.up &^= 1 << v
}

// warn logs a device's first protocol violation.
func (q *Queues) warn(msg string, args ...any) {
	if !q.warned {
		q.warned = true
		q.cfg.Log.Warn(msg, args...)
	}
}

// lost handles an error of an access to the device: it is gone, which the server of the bus
// reports.
func (q *Queues) lost(err error) {
	if err != nil {
		q.warn("a register of the queues cannot be written", "error", err)
	}
}

// look determines the cause of vector 0: the event queue was disabled by an error, or there is
// nothing new.
func (q *Queues) look() {
	q.drain()
	s, err := q.raw(device.PL).Read32(device.PLEventQueue + device.QueueStatus)
	if err != nil || s&device.QueueIsOn != 0 {
		q.lost(err)
		return
	}
	q.drain() // events written before the error
	q.stats.Breaks++
	q.cfg.Log.Error("the device's queues in memory are disabled: faults are served through the registers", "status", s)
	q.events = false
	call(q.cfg.Mail, -1) // messages stay in their mailboxes from now on
	q.registers()
	q.lost(q.raw(device.PL).Write32(device.PLEventQueue+device.QueueStatus, device.QueueErrors))
	q.lost(q.raw(device.PL).Write32(device.PLIRQStatus, 1<<device.VectorFault))
	q.lost(q.raw(device.PL).Write32(device.PLIRQMask, q.mask))
	q.latchAgain(device.VectorFault)
	q.latchAgain(device.VectorFIFO)
	q.latchAgain(device.VectorMailbox)
	q.latchAgain(device.VectorDone)
	q.rise()
	q.isOff()
}

func (q *Queues) isOff() {
	if q.cfg.Off != nil {
		q.cfg.Off()
	}
}

// registers makes messages go through the packetizers' registers from now on.
func (q *Queues) registers() {
	if !q.commands.on {
		return
	}
	q.commands.set(false)
	q.lost(q.raw(device.PL).Write32(device.PLCommandQueue+device.QueueCtrl, device.QueueTurnOff))
	for _, w := range q.waiting {
		q.lost(q.sendWords(w, 1))
	}
	q.waiting = q.waiting[:0]
}
