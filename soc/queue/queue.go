// Package queue is the device's side of the queues in memory (docs/spec/queues.md): the event
// queue replaces the driver's reads of registers, and the command queue its writes. It is pure:
// an access to the rings leaves as a value, and its completion arrives as another.
package queue

import "github.com/exanet/pfd/device"

// Sizes. Values are defined by this project.
const (
	batch    = 16  // events of one access
	fetch    = 8   // commands of one access
	maxEdges = 256 // events that wait and are in no register
	maxSyncs = 32

	// MaxRead is the maximum size of one read, in bytes.
	MaxRead = fetch * device.QueueEntrySize
)

// Access is one access to DMA memory. Data belongs to the machine, and to the performer until it
// answers. If Entries is set, Data holds whole entries to be written, and word 0 of each must be
// written after the entry's other words.
type Access struct {
	ID      uint32
	Addr    uint64
	Data    []byte
	Write   bool
	Entries bool
}

// Host is the node behind the queues. An event that comes from registers stays in them until
// Taken.
type Host interface {
	// Waiting appends the pending events of registers, oldest first, as far as out has room.
	Waiting(out []device.Event) []device.Event
	// Taken reports that such an event was written to the queue. Its register may have changed
	// since: state that the event does not report must stay.
	Taken(*device.Event)
	// Command performs a command (not SYNC or NOP) and returns an event if there is one to
	// report.
	Command(*device.Command) (device.Event, bool)
	// Busy reports whether accesses of a bank are in flight.
	Busy(bank int) bool
}

// ring is the location of a queue, as its registers say.
type ring struct {
	base   uint64
	log    uint32
	on     bool
	errors uint32
	index  uint32 // of the next entry to be written or read, modulo 2 * entries
}

func (r *ring) entries() uint32     { return 1 << r.log }
func (r *ring) mod(i uint32) uint32 { return i & (2*r.entries() - 1) }
func (r *ring) slot() uint32        { return r.index & (r.entries() - 1) }
func (r *ring) addr() uint64        { return r.base + uint64(r.slot())*device.QueueEntrySize }

// phase returns the phase bit of the entry at index.
func (r *ring) phase() uint64 { return uint64(r.index>>r.log&1 ^ 1) }

// start enables the queue if its configuration is valid.
func (r *ring) start() {
	r.index, r.errors = 0, 0
	size := uint64(r.entries()) * device.QueueEntrySize
	if r.log < device.QueueMinLog || r.log > device.QueueMaxLog || r.base+size-1 < r.base {
		r.errors = device.QueueErrConfig
		return
	}
	r.on = true
}

func (r *ring) status() uint32 {
	if r.on {
		return r.errors | device.QueueIsOn
	}
	return r.errors
}

// sync is a waiting SYNC.
type sync struct {
	bank  uint8
	store *Access // of its word, nil: not begun
	addr  uint64
	value uint64
	word0 uint64
}

// Machine is the two queues of a node. Its zero value has both disabled.
type Machine struct {
	host Host
	next uint32 // ID of the next access

	ev     ring
	cons   uint32
	write  *Access // of a batch
	batch  [batch]device.Event
	taken  []device.Event // of the batch, the events of registers
	edged  int            // and the number of edges
	told   uint64         // and the kinds that its overflow event reports
	spare  []byte         // of the last batch
	edges  []device.Event // events that are in no register, oldest first
	lost   uint64         // a bit per kind of event lost for lack of room
	notify bool

	cmd     ring
	read    *Access
	looking bool // read checks the phase only
	looked  int  // entries that a phase check found complete and that are still to be read
	full    bool // the phase check found no end
	rung    bool
	more    bool   // continue checking
	buf     []byte // of the last read
	budget  uint32 // commands that may still be taken for this doorbell
	syncs   []sync
}

// New returns the queues of a host, disabled.
func New(h Host) Machine { return Machine{host: h} }

// Reset performs CTRL.reset: both queues are disabled and their registers as after power-on.
// Outstanding answers are ignored.
func (m *Machine) Reset() { *m = Machine{host: m.host, next: m.next} }

// Events reports whether the event queue is enabled.
func (m *Machine) Events() bool { return m.ev.on }

// Active reports whether there may be anything to do.
func (m *Machine) Active() bool { return m.ev.on || m.cmd.on || len(m.syncs) > 0 }

// Broken reports whether an error has disabled the event queue.
func (m *Machine) Broken() bool { return m.ev.errors != 0 }

// Load reads the register at an offset of window pl.
func (m *Machine) Load(offset uint32) uint64 {
	r, off := &m.ev, offset-device.PLEventQueue
	if offset >= device.PLCommandQueue {
		r, off = &m.cmd, offset-device.PLCommandQueue
	}
	switch off {
	case device.QueueBase:
		return r.base
	case device.QueueSize:
		return uint64(r.log)
	case device.QueueStatus:
		return uint64(r.status())
	case device.QueueProd:
		return uint64(r.index)
	case device.QueueCons:
		return uint64(m.cons)
	case device.QueueDoorbell:
		return device.DoorbellTakes | device.DoorbellMail
	}
	return 0
}

// Store writes the register at an offset of window pl: value is its new content, act the written
// value for bits that trigger an action.
func (m *Machine) Store(offset uint32, value, act uint64) {
	r, off, stop := &m.ev, offset-device.PLEventQueue, m.stopEvents
	if offset >= device.PLCommandQueue {
		r, off, stop = &m.cmd, offset-device.PLCommandQueue, m.stopCommands
	}
	switch off {
	case device.QueueBase, device.QueueSize:
		if r.on {
			stop(device.QueueErrChanged)
		}
		if off == device.QueueBase {
			r.base = value
		} else {
			r.log = uint32(value)
		}
	case device.QueueCtrl:
		switch {
		case act&device.QueueTurnOff != 0:
			stop(0)
		case act&device.QueueTurnOn != 0:
			stop(0)
			r.start()
			if r == &m.ev {
				m.cons = 0
			}
		}
	case device.QueueStatus:
		r.errors = uint32(value) & device.QueueErrors
	case device.QueueCons:
		m.consumed(uint32(value))
	case device.QueueDoorbell:
		if act&device.DoorbellCons != 0 {
			m.consumed(uint32(act & 0xffff))
		}
		if r.on {
			m.rung, m.budget = true, r.entries()
		}
	}
}

// consumed handles a new read index from the driver.
func (m *Machine) consumed(n uint32) {
	r := &m.ev
	m.cons = n
	if r.on && (r.mod(n) != n || r.mod(r.index-n) > r.entries()) {
		m.stopEvents(device.QueueErrIndex)
	}
}

// stopEvents disables the event queue. Events in registers stay there.
func (m *Machine) stopEvents(why uint32) {
	m.ev.on = false
	m.ev.errors |= why
	m.write, m.taken, m.edged, m.told = nil, nil, 0, 0
	m.edges, m.lost, m.notify, m.spare = nil, 0, false, nil
}

func (m *Machine) stopCommands(why uint32) {
	m.cmd.on = false
	m.cmd.errors |= why
	m.read, m.rung, m.more, m.looked, m.buf = nil, false, false, 0, nil
	m.syncs = nil
	if why != 0 {
		m.Tell(device.Event{Kind: device.EventError, Code: device.CommandOff})
	}
}

// Tell queues an event that is in no register. If too many are queued, the overflow event names
// the kind of the lost ones.
func (m *Machine) Tell(e device.Event) {
	switch {
	case !m.ev.on:
	case len(m.edges) >= maxEdges:
		m.lost |= 1 << e.Kind
	default:
		m.edges = append(m.edges, e)
	}
}

// TellMail is Tell for a message in a mailbox; it is skipped if an event for the mailbox is
// already queued.
func (m *Machine) TellMail(mailbox uint8) {
	for i := m.edged; i < len(m.edges); i++ {
		if e := &m.edges[i]; e.Kind == device.EventMail && e.Index == mailbox {
			return
		}
	}
	m.Tell(device.Event{Kind: device.EventMail, Index: mailbox})
}

// Run begins all accesses that can begin and passes each to out. It reports whether the driver
// must be notified of new events.
func (m *Machine) Run(out func(*Access)) (notify bool) {
	m.commands(out)
	m.wait(out)
	m.events(out)
	notify, m.notify = m.notify, false
	return notify
}

// access returns a new access of size bytes; it reuses buf if that is large enough.
func (m *Machine) access(addr uint64, size int, buf []byte) *Access {
	m.next++
	if cap(buf) < size {
		buf = make([]byte, size, max(size, MaxRead))
	}
	return &Access{ID: m.next, Addr: addr, Data: buf[:size]}
}

// events begins to write a batch.
func (m *Machine) events(out func(*Access)) {
	r := &m.ev
	if !r.on || m.write != nil {
		return
	}
	room := min(batch, r.entries()-r.mod(r.index-m.cons), r.entries()-r.slot())
	if room == 0 {
		return
	}
	list := m.batch[:0:room]
	if m.told = m.lost; m.lost != 0 {
		list = append(list, device.Event{Kind: device.EventOverflow, Cookie: m.lost})
	}
	first := len(list)
	list = m.host.Waiting(list)
	// Half is reserved for the others.
	if half := int(room+1) / 2; len(m.edges) > 0 && len(list) > half {
		list = list[:max(first, min(half, cap(list)-1))]
	}
	m.taken = list[first:len(list):len(list)]
	m.edged = min(len(m.edges), cap(list)-len(list))
	list = append(list, m.edges[:m.edged]...)
	if len(list) == 0 {
		return
	}
	a := m.access(r.addr(), len(list)*device.QueueEntrySize, m.spare)
	a.Write, a.Entries = true, true
	for i := range list {
		list[i].Commands = uint16(m.cmd.index)
		q := list[i].Encode()
		q[0] |= r.phase()
		q.Put(a.Data[i*device.QueueEntrySize:])
	}
	m.write = a
	out(a)
}

// written handles the completion of a batch.
func (m *Machine) written(ok bool) {
	n := uint32(len(m.write.Data) / device.QueueEntrySize)
	m.spare, m.write = m.write.Data, nil
	if !ok {
		m.stopEvents(device.QueueErrAccess)
		return
	}
	m.ev.index = m.ev.mod(m.ev.index + n)
	for i := range m.taken {
		m.host.Taken(&m.taken[i])
	}
	m.edges = m.edges[:copy(m.edges, m.edges[m.edged:])]
	m.lost &^= m.told
	m.taken, m.edged, m.told = nil, 0, 0
	m.notify = true
}

// commands begins to read commands: first only their phases, then the commands found complete.
func (m *Machine) commands(out func(*Access)) {
	r := &m.cmd
	if !r.on || m.read != nil || m.budget == 0 || len(m.edges)+fetch > maxEdges {
		return
	}
	n := m.looked
	if n == 0 {
		if !m.rung && !m.more {
			return
		}
		m.rung, m.more = false, false
		n = int(min(fetch, r.entries()-r.slot()))
	}
	m.looking, m.looked = m.looked == 0, 0
	m.read = m.access(r.addr(), n*device.QueueEntrySize, m.buf)
	out(m.read)
}

// fetched handles the completion of a read.
func (m *Machine) fetched(ok bool) {
	r, b := &m.cmd, m.read.Data
	m.read, m.buf = nil, b
	if !ok {
		m.stopCommands(device.QueueErrAccess)
		return
	}
	n := len(b) / device.QueueEntrySize
	if m.looking {
		for m.looked < n && uint64(b[m.looked*device.QueueEntrySize])&device.QueuePhase == r.phase() {
			m.looked++
		}
		m.full = m.looked == n
		return
	}
	for i := range n {
		q := device.QueueEntryOf(b[i*device.QueueEntrySize:])
		if q[0]&device.QueuePhase != r.phase() {
			return // withdrawn since the phase check
		}
		r.index = r.mod(r.index + 1)
		m.do(&q)
		if m.budget--; m.budget == 0 {
			return
		}
	}
	m.more = m.full
}

// do performs one command.
func (m *Machine) do(q *device.QueueEntry) {
	wrong := func(code uint8) {
		m.Tell(device.Event{Kind: device.EventError, Code: code, Cookie: q[0]})
	}
	c, err := device.DecodeCommand(q)
	switch {
	case err != nil:
		wrong(device.CommandInvalid)
	case c.Kind == device.CommandNop:
		m.Tell(device.Event{Kind: device.EventNop, Cookie: c.Value})
	case c.Kind == device.CommandSync && len(m.syncs) >= maxSyncs:
		wrong(device.CommandSyncs)
	case c.Kind == device.CommandSync:
		m.syncs = append(m.syncs, sync{bank: c.Index, addr: c.Address, value: c.Value, word0: q[0]})
	default:
		if e, ok := m.host.Command(&c); ok {
			m.Tell(e)
		}
	}
}

// wait begins to store the words of the SYNCs whose accesses have completed.
func (m *Machine) wait(out func(*Access)) {
	for i := range m.syncs {
		s := &m.syncs[i]
		if s.store != nil || m.busy(s.bank) {
			continue
		}
		s.store = m.access(s.addr, 8, nil)
		s.store.Write = true
		for k := range s.store.Data {
			s.store.Data[k] = byte(s.value >> (8 * k))
		}
		out(s.store)
	}
}

func (m *Machine) busy(bank uint8) bool {
	if bank != device.SyncAll {
		return m.host.Busy(int(bank))
	}
	for i := range device.Slots {
		if m.host.Busy(i) {
			return true
		}
	}
	return false
}

// Answered handles the completion of an access; one that is no longer expected is ignored. When
// it returns, the commands read by the access have been performed.
func (m *Machine) Answered(id uint32, ok bool) {
	switch {
	case m.write != nil && m.write.ID == id:
		m.written(ok)
		return
	case m.read != nil && m.read.ID == id:
		m.fetched(ok)
		return
	}
	for i := range m.syncs {
		if s := &m.syncs[i]; s.store != nil && s.store.ID == id {
			if !ok {
				m.Tell(device.Event{Kind: device.EventError, Code: device.CommandAccess, Cookie: s.word0})
			}
			m.syncs = append(m.syncs[:i], m.syncs[i+1:]...)
			return
		}
	}
}
