// Package queues is the driver's side of the queues in memory (docs/spec/queues.md). It
// stands between a driver and the windows of its node: what the event queue tells
// is found in the registers that would tell it, and what a packetizer of pfd's
// sends goes into the command queue. So there is one driver for both ways, and it
// reads no register of the device.
//
// Where the event queue breaks, the driver is back at the registers: nothing that
// stands in them was taken before it was written.
package queues

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/exanet/pfd/device"
)

// Sizes of the rings (ours): a FIFO's worth of events is never behind by more.
const (
	logEntries = 8
	entries    = 1 << logEntries
	ringSize   = entries * device.QueueEntrySize

	eventsAt   = 0
	commandsAt = ringSize
	wordsAt    = 2 * ringSize // of SYNCs
	// MemorySize is what the two rings and the words of SYNCs take, bytes.
	MemorySize = wordsAt + device.PageSize

	ownPages = device.MailboxProcess // packetizers 0..15 are pfd's
)

// Memory is the rings' memory, MemorySize bytes that the device reaches as well:
// each call is one atomic access of 64 bits at an offset that is a multiple of 8. Any
// goroutine may make it.
type Memory interface {
	Load(offset uint32) uint64
	Store(offset uint32, v uint64)
}

// ErrOff says that the device did not turn a queue on.
var ErrOff = errors.New("the device's queue in memory is off")

// Config is what Queues are made of. All is called on the goroutine that owns the
// windows, but for what Invalidate says.
type Config struct {
	Window func(device.WindowID) device.Window // the device's own
	Memory Memory
	Addr   uint64 // of Memory for the device, whole pages
	// Raise is called when vectors wait for Deliver; it must not call it itself.
	Raise func()
	// Later has f run soon on the owning goroutine. One doorbell is rung for all
	// commands until then.
	Later func(f func())
	// Bell rings CMDQ_DOORBELL by other means; nil: by its register.
	Bell func() error
	// Written, Done and Mail are called for the events that are no faults; each may be
	// nil. After events were lost they are called for everything: -1.
	Written func(slot int)
	Done    func(slot int)
	Mail    func(mailbox int)
	// Off is called when an error or a reset has turned the queues off; it may be nil. Renew
	// turns them on again, later.
	Off func()
	Log *slog.Logger // nil: none
}

// Stats counts what came and went.
type Stats struct {
	Events   uint64 // taken from the event queue
	Bad      uint64 // of these, none that there is
	Lost     uint64 // overflow events
	Refused  uint64 // messages of the command queue that were refused
	Errors   uint64 // commands in error
	Commands uint64 // put into the command queue
	Bells    uint64 // doorbells rung
	Breaks   uint64 // errors that turned a queue off
}

// Queues are one node's. They belong to the goroutine that owns the windows, but for
// Invalidate, Forgotten and Release.
type Queues struct {
	cfg         Config
	windows     [device.Windows]window
	again, bell func() // what Later gets, prebuilt: it allocates nothing
	commands    commands
	stats       Stats
	state
}

// state is what Stop forgets.
type state struct {
	events     bool   // in use
	cons, told uint32 // events taken, and as the device knows it; modulo 2 * entries
	broken     bool   // the command queue is off by an error
	draining   bool   // Later is to drain again
	belled     bool   // or to ring
	bellCons   bool   // the doorbell tells cons
	nop        uint64 // cookie of the last NOP that was asked for
	seen       uint64 // and of the last that was told

	// The registers as the driver finds them.
	status, mask, up uint32
	fifos            [2]fifo // RX, TX
	banks            [device.Slots]bank
	gfsr             uint32
	gfar             uint64
	pages            [ownPages][device.PktzChannels]channel
	waiting          []waiting // messages for which the command queue has no room yet

	warned bool
}

// bank is what a context bank's fault registers hold.
type bank struct {
	fsr, fsynr0 uint32
	far         uint64
}

// channel is a packetizer channel as the driver has written it.
type channel struct {
	destination uint64
	payload     [device.PktzMaxWords]uint64
	status      uint64
	direct      bool // the last message went by registers
}

// waiting names a channel whose message waits.
type waiting struct{ page, channel uint8 }

// New gives the queues of a node, off: every access goes to the device.
func New(cfg Config) *Queues {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	q := &Queues{cfg: cfg}
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

// Window gives a window of the node with the queues in front of it.
func (q *Queues) Window(id device.WindowID) device.Window { return &q.windows[id] }

// Stats gives the counters.
func (q *Queues) Stats() Stats {
	s, c := q.stats, &q.commands
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Commands, s.Bells = c.put, c.bells
	return s
}

// On tells whether the event queue is in use.
func (q *Queues) On() bool { return q.events }

func (q *Queues) raw(id device.WindowID) device.Window { return q.windows[id].to }

// Start turns both queues on. What a former driver left in the registers comes as
// events. The device must have CAPS[28]. An error matches ErrOff or
// device.ErrGone.
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
	// Vector 0 tells of errors from now on; the driver's own mask is kept here.
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
	q.events, q.mask, q.bellCons = true, mask, bell&device.DoorbellTakes != 0
	q.commands.set(true)
	// Who left mail or was done before is not told again.
	q.status = 1<<device.VectorMailbox | 1<<device.VectorDone
	return nil
}

// Stop has every access go to the device from now on, which is gone or reset.
func (q *Queues) Stop() {
	q.commands.set(false)
	q.state = state{waiting: q.waiting[:0]}
}

// Renew turns queues on again that an error or a reset has turned off; an error is
// Start's. False: they are on, or what the event queue has told is not served yet.
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

// anything has everybody look: what came meanwhile is in no event.
func (q *Queues) anything() {
	call(q.cfg.Mail, -1)
	call(q.cfg.Done, -1)
	call(q.cfg.Written, -1)
}

// Nop asks for an event, and Answered tells whether the last one asked for has
// come: then the device sees this memory.
func (q *Queues) Nop() {
	q.nop++
	if q.commands.add(q.cfg.Memory, &device.Command{Kind: device.CommandNop, Value: q.nop}) {
		q.ring()
	}
}

// Answered drains the event queue and tells whether the last Nop is answered.
func (q *Queues) Answered() bool {
	q.drain()
	return q.nop > 0 && q.seen == q.nop
}

// Vector takes a vector of the device, while the event queue is on.
func (q *Queues) Vector(v int) {
	if v == device.VectorFault {
		q.look()
		return
	}
	q.drain()
}

// Deliver gives the vectors that are up to a driver.
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

// latch latches the causes that hold, and tells whether a vector waits for Deliver.
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

// rise has Deliver called where it is worth it.
func (q *Queues) rise() {
	if q.latch() {
		q.cfg.Raise()
	}
}

func word(at, index uint32, w int) uint32 {
	return at + index&(entries-1)*device.QueueEntrySize + 8*uint32(w)
}

func mod(i uint32) uint32 { return i & (2*entries - 1) }

// phase is the phase bit of the entry at an index.
func phase(index uint32) uint64 { return uint64(index>>logEntries&1 ^ 1) }

// drain takes what is in the event queue, a ring's worth at most: whoever writes
// faster gets its next turn later.
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

// room tells whether any event could be taken.
func (q *Queues) room() bool {
	return q.fifos[0].level() < device.FIFODepth && q.fifos[1].level() < device.FIFODepth
}

// take takes one event.
func (q *Queues) take(entry *device.QueueEntry) {
	e, err := device.DecodeEvent(entry)
	if err != nil {
		q.stats.Bad++
		q.warn("an entry of the device's event queue is none", "error", err)
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
	case device.EventDone:
		call(q.cfg.Done, int(e.Index))
	case device.EventWords:
		call(q.cfg.Written, int(e.Index))
	case device.EventRefused:
		q.stats.Refused++
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

// latchAgain latches a cause whose event is all there is of it: a new edge.
func (q *Queues) latchAgain(v int) {
	q.status |= 1 << v
	q.up &^= 1 << v
}

// warn logs what a device should not do, once.
func (q *Queues) warn(msg string, args ...any) {
	if !q.warned {
		q.warned = true
		q.cfg.Log.Warn(msg, args...)
	}
}

// lost takes the error of an access to the device: it is gone, and whoever serves
// the bus says so.
func (q *Queues) lost(err error) {
	if err != nil {
		q.warn("a register of the queues cannot be written", "error", err)
	}
}

// look finds out why vector 0 came: the event queue is off, or else nothing that is
// not in it.
func (q *Queues) look() {
	q.drain()
	s, err := q.raw(device.PL).Read32(device.PLEventQueue + device.QueueStatus)
	if err != nil || s&device.QueueIsOn != 0 {
		q.lost(err)
		return
	}
	q.drain() // what was written before the error
	q.stats.Breaks++
	q.cfg.Log.Error("the device's queues in memory are off: faults are served by the registers", "status", s)
	q.events = false
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

// registers has messages go by the packetizers' registers from now on.
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
