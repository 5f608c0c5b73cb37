package queue

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
)

const (
	evAt  = 0x10000
	cmdAt = 0x20000
	memAt = 0x10000 // the rig's memory is mapped from here to memEnd
	memTo = 0x40000
)

// rig is a machine with DMA memory and a host of one FIFO.
type rig struct {
	t       testing.TB
	m       Machine
	mem     []byte
	fail    func(*Access) bool // true: the access is refused
	held    []*Access          // made and not yet answered
	hold    bool
	notify  int
	made    int // accesses
	faults  []device.Event
	done    []device.Command
	refuse  bool
	busy    uint32 // banks
	evIndex uint32 // driver's
	cmdProd uint32
	log     uint32
}

func newRig(t testing.TB, log uint32) *rig {
	r := &rig{t: t, mem: make([]byte, memTo-memAt), log: log}
	r.m = New(r)
	r.store(device.PLEventQueue+device.QueueBase, evAt)
	r.store(device.PLEventQueue+device.QueueSize, uint64(log))
	r.act(device.PLEventQueue+device.QueueCtrl, device.QueueTurnOn)
	r.store(device.PLCommandQueue+device.QueueBase, cmdAt)
	r.store(device.PLCommandQueue+device.QueueSize, uint64(log))
	r.act(device.PLCommandQueue+device.QueueCtrl, device.QueueTurnOn)
	return r
}

func (r *rig) Waiting(out []device.Event) []device.Event {
	return append(out, r.faults[:min(len(r.faults), cap(out)-len(out))]...)
}

func (r *rig) Taken(e *device.Event) { r.faults = r.faults[1:] }

func (r *rig) Command(c *device.Command) (device.Event, bool) {
	r.done = append(r.done, *c)
	return device.Event{Kind: device.EventRefused, Index: c.Index}, r.refuse
}

func (r *rig) Busy(bank int) bool { return r.busy>>bank&1 != 0 }

func (r *rig) store(off uint32, v uint64) { r.m.Store(off, v, 0); r.run() }
func (r *rig) act(off uint32, v uint64)   { r.m.Store(off, 0, v); r.run() }

// run makes accesses until there are none.
func (r *rig) run() {
	for i := 0; ; i++ {
		if i > 10_000 {
			r.t.Fatal("the queues do not come to rest")
		}
		var next []*Access
		if r.m.Run(func(a *Access) { next = append(next, a) }) {
			r.notify++
		}
		r.made += len(next)
		r.held = append(r.held, next...)
		if r.hold || len(r.held) == 0 {
			return
		}
		for _, a := range r.take() {
			r.answer(a)
		}
	}
}

func (r *rig) take() []*Access {
	h := r.held
	r.held = nil
	return h
}

// answer performs an access and reports its end.
func (r *rig) answer(a *Access) {
	ok := a.Addr >= memAt && a.Addr+uint64(len(a.Data)) <= memTo && (r.fail == nil || !r.fail(a))
	if ok {
		b := r.mem[a.Addr-memAt:][:len(a.Data)]
		if a.Write {
			copy(b, a.Data)
		} else {
			copy(a.Data, b)
		}
	}
	r.m.Answered(a.ID, ok)
}

// events takes the pending events, as a driver does; with tell it also writes CONS.
func (r *rig) events(tell bool) (out []device.Event) {
	for {
		slot := r.evIndex & (1<<r.log - 1)
		q := device.QueueEntryOf(r.mem[evAt-memAt+slot*device.QueueEntrySize:])
		if q[0]&1 == uint64(r.evIndex>>r.log&1) {
			break
		}
		e, err := device.DecodeEvent(&q)
		if err != nil {
			r.t.Fatal(err)
		}
		out = append(out, e)
		r.evIndex = (r.evIndex + 1) & (2<<r.log - 1)
		if len(out) > 1<<r.log {
			r.t.Fatal("more events than the ring has")
		}
	}
	switch {
	case tell && r.evIndex&1 == 0: // either way
		r.store(device.PLEventQueue+device.QueueCons, uint64(r.evIndex))
	case tell:
		r.act(device.PLCommandQueue+device.QueueDoorbell, device.DoorbellCons|uint64(r.evIndex))
	}
	return out
}

func (r *rig) put(c device.Command) {
	q := c.Encode()
	q[0] |= uint64(r.cmdProd>>r.log&1 ^ 1)
	q.Put(r.mem[cmdAt-memAt+(r.cmdProd&(1<<r.log-1))*device.QueueEntrySize:])
	r.cmdProd = (r.cmdProd + 1) & (2<<r.log - 1)
}

func (r *rig) bell() { r.act(device.PLCommandQueue+device.QueueDoorbell, 1) }

func (r *rig) status(queue uint32) uint64 { return r.m.Load(queue + device.QueueStatus) }

func fault(n int) device.Event {
	return device.Event{Kind: device.EventFault, Words: [4]uint32{1, 1, 1, uint32(n)<<12 | 1}}
}

// Events arrive in order over many laps, each once, with one notification per batch.
func TestEventsWrap(t *testing.T) {
	r := newRig(t, 4)
	want := 0
	for lap := range 40 {
		for i := range lap%13 + 1 {
			r.faults = append(r.faults, fault(want+i))
		}
		r.run()
		for _, e := range r.events(true) {
			if e != fault(want) {
				t.Fatalf("lap %d: %+v, want fault %d", lap, e, want)
			}
			want++
		}
	}
	if want < 64 || len(r.faults) != 0 || r.notify == 0 {
		t.Errorf("%d events, %d left, %d notifications", want, len(r.faults), r.notify)
	}
	if p := r.m.Load(device.PLEventQueue + device.QueueProd); p != uint64(want%32) {
		t.Errorf("PROD %d after %d events", p, want)
	}
}

// A full queue leaves events in their registers, and reports which others were lost.
func TestEventsFull(t *testing.T) {
	r := newRig(t, 4)
	for i := range 40 {
		r.faults = append(r.faults, fault(i))
	}
	r.run()
	if len(r.faults) != 40-16 {
		t.Errorf("%d left in the FIFO, want 24", len(r.faults))
	}
	for i := range maxEdges + 10 {
		r.m.Tell(device.Event{Kind: device.EventWords, Index: 1, Address: uint64(i)})
	}
	r.m.TellMail(3)
	made := r.made
	r.run()
	if r.made != made {
		t.Error("a full queue was written")
	}
	var faults, words, lost int
	for range 100 {
		for _, e := range r.events(true) {
			switch e.Kind {
			case device.EventFault:
				if e != fault(faults) {
					t.Fatalf("%+v, want fault %d", e, faults)
				}
				faults++
			case device.EventWords:
				words++
			case device.EventOverflow:
				lost++
				if e.Cookie != 1<<device.EventWords|1<<device.EventMail {
					t.Errorf("overflow event has %#x", e.Cookie)
				}
			}
		}
	}
	if faults != 40 || words != maxEdges || lost != 1 {
		t.Errorf("%d faults, %d words, %d overflows; want 40, %d, 1", faults, words, lost, maxEdges)
	}
}

// A flood from one source does not starve the other.
func TestEventsShare(t *testing.T) {
	r := newRig(t, 6)
	r.hold = true
	for i := range 100 {
		r.faults = append(r.faults, fault(i))
		r.m.Tell(device.Event{Kind: device.EventWords})
	}
	r.run()
	r.answer(r.take()[0])
	var faults, words int
	for _, e := range r.events(false) {
		if e.Kind == device.EventFault {
			faults++
		} else {
			words++
		}
	}
	if faults != 8 || words != 8 {
		t.Errorf("%d faults and %d words in a batch", faults, words)
	}
}

// One doorbell for many commands, over many laps; each is performed once, in order.
func TestCommandsWrap(t *testing.T) {
	r := newRig(t, 4)
	n := uint64(0)
	for lap := range 40 {
		var want []device.Command
		for range lap%16 + 1 {
			c := device.Command{Kind: device.CommandSend, Index: 3, Channel: 1, Count: 1, Destination: n, Words: [6]uint64{^n}}
			n++
			r.put(c)
			want = append(want, c)
		}
		r.done = nil
		r.bell()
		if !slices.Equal(r.done, want) {
			t.Fatalf("lap %d: done %+v\nwant %+v", lap, r.done, want)
		}
		r.bell() // for nothing
	}
	if c := r.m.Load(device.PLCommandQueue + device.QueueProd); c != n%32 {
		t.Errorf("CONS %d after %d commands", c, n)
	}
}

// Results of commands are events, which also report the room for commands.
func TestCommandEvents(t *testing.T) {
	r := newRig(t, 4)
	r.refuse = true
	bad := device.Command{Kind: device.CommandSync, Index: 9, Address: 4}
	r.put(device.Command{Kind: device.CommandNop, Value: 77})
	r.put(bad)
	r.put(device.Command{Kind: device.CommandSend, Index: 5, Count: 1})
	r.bell()
	q := bad.Encode()
	want := []device.Event{
		{Kind: device.EventNop, Commands: 3, Cookie: 77},
		{Kind: device.EventError, Commands: 3, Code: device.CommandInvalid, Cookie: q[0] | 1},
		{Kind: device.EventRefused, Commands: 3, Index: 5},
	}
	if got := r.events(true); !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// SYNC stores its word when the accesses have completed, and delays no other command.
func TestSync(t *testing.T) {
	r := newRig(t, 6)
	word := func() uint64 { return binary.LittleEndian.Uint64(r.mem[0x38000-memAt:]) }
	r.busy = 1 << 2
	r.put(device.Command{Kind: device.CommandSync, Index: 2, Address: 0x38000, Value: 0xfeed})
	r.put(device.Command{Kind: device.CommandSync, Index: device.SyncAll, Address: 0x38008, Value: 1})
	r.put(device.Command{Kind: device.CommandNop})
	r.bell()
	if e := r.events(true); word() != 0 || len(e) != 1 || e[0].Kind != device.EventNop {
		t.Errorf("word %#x, events %+v while an access is in flight", word(), e)
	}
	r.busy = 0
	r.run()
	if word() != 0xfeed || r.mem[0x38008-memAt] != 1 {
		t.Errorf("word %#x after it", word())
	}
	// Words that cannot be stored, and too many SYNCs.
	r.busy = 1
	for range maxSyncs + 1 {
		r.put(device.Command{Kind: device.CommandSync, Index: 0, Address: memTo})
	}
	r.bell()
	if e := r.events(true); len(e) != 1 || e[0].Code != device.CommandSyncs {
		t.Errorf("events %+v for one SYNC too many", e)
	}
	r.busy = 0
	r.run()
	if e := r.events(true); len(e) != maxSyncs || e[0].Kind != device.EventError || e[0].Code != device.CommandAccess {
		t.Errorf("%d events %+v for words that cannot be stored", len(e), e)
	}
	if r.status(device.PLCommandQueue) != device.QueueIsOn {
		t.Errorf("CMDQ_STATUS %#x", r.status(device.PLCommandQueue))
	}
}

// Any error of a ring disables it and loses no event that is in a register.
func TestErrors(t *testing.T) {
	ev, cmd := uint32(device.PLEventQueue), uint32(device.PLCommandQueue)
	on := func(r *rig, q uint32) { r.act(q+device.QueueCtrl, device.QueueTurnOn) }
	for _, tc := range []struct {
		name  string
		do    func(*rig)
		queue uint32
		want  uint64
	}{
		{"events to an unmapped address", func(r *rig) { r.fail = func(a *Access) bool { return a.Entries } }, ev, device.QueueErrAccess},
		{"commands from an unmapped address", func(r *rig) { r.fail = func(a *Access) bool { return !a.Write }; r.bell() }, cmd, device.QueueErrAccess},
		{"CONS ahead", func(r *rig) { r.store(ev+device.QueueCons, 5) }, ev, device.QueueErrIndex},
		{"CONS out of range", func(r *rig) { r.store(ev+device.QueueCons, 0xffff) }, ev, device.QueueErrIndex},
		{"CONS ahead in a doorbell", func(r *rig) { r.act(cmd+device.QueueDoorbell, device.DoorbellCons|5) }, ev, device.QueueErrIndex},
		{"CONS out of range in a doorbell", func(r *rig) { r.act(cmd+device.QueueDoorbell, device.DoorbellCons|0xffff) }, ev, device.QueueErrIndex},
		{"base of events changed", func(r *rig) { r.store(ev+device.QueueBase, 0x30000) }, ev, device.QueueErrChanged},
		{"size of events changed", func(r *rig) { r.store(ev+device.QueueSize, 5) }, ev, device.QueueErrChanged},
		{"base of commands changed", func(r *rig) { r.store(cmd+device.QueueBase, 0x30000) }, cmd, device.QueueErrChanged},
		{"3", func(r *rig) { r.act(ev+device.QueueCtrl, 2); r.store(ev+device.QueueSize, 3); on(r, ev) }, ev, device.QueueErrConfig},
		{"13", func(r *rig) { r.act(ev+device.QueueCtrl, 2); r.store(ev+device.QueueSize, 13); on(r, ev) }, ev, device.QueueErrConfig},
		{"past the end", func(r *rig) {
			r.act(cmd+device.QueueCtrl, 2)
			r.store(cmd+device.QueueSize, 12)
			r.store(cmd+device.QueueBase, ^uint64(0xfff))
			on(r, cmd)
		}, cmd, device.QueueErrConfig},
		{"off by the driver", func(r *rig) { r.act(ev+device.QueueCtrl, 2) }, ev, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 4)
			tc.do(r)
			r.faults = append(r.faults, fault(1))
			r.run()
			if s := r.status(tc.queue); s != tc.want {
				t.Errorf("STATUS %#x, want %#x", s, tc.want)
			}
			if tc.queue == ev && (len(r.faults) != 1 || r.m.Broken() != (tc.want != 0)) {
				t.Errorf("%d faults stand in the FIFO, broken %v", len(r.faults), r.m.Broken())
			}
			if tc.queue == cmd && r.m.Events() && tc.want != device.QueueErrConfig {
				if e := r.events(true); len(e) != 2 || e[1] != fault(1) || e[0].Kind != device.EventError || e[0].Code != device.CommandOff {
					t.Errorf("events %+v", e)
				}
			}
			// It works again after it is set up anew.
			r.fail = nil
			clear(r.mem)
			r.evIndex = 0
			for _, q := range []uint32{ev, cmd} {
				r.act(q+device.QueueCtrl, device.QueueTurnOff)
				r.store(q+device.QueueSize, 4)
			}
			r.store(ev+device.QueueBase, evAt)
			on(r, ev)
			if e := r.events(true); r.status(ev) != device.QueueIsOn || len(r.faults) != 0 || tc.queue == ev && !slices.Equal(e, []device.Event{fault(1)}) {
				t.Errorf("after it was enabled again: STATUS %#x, events %+v", r.status(ev), e)
			}
		})
	}
}

// Answers of accesses from before a reset, or a change of the base, are ignored, and what they
// still write is not used.
func TestLateAnswers(t *testing.T) {
	r := newRig(t, 4)
	r.hold = true
	r.faults = append(r.faults, fault(1))
	r.put(device.Command{Kind: device.CommandNop})
	r.bell()
	late := r.take()
	if len(late) != 2 {
		t.Fatalf("%d accesses", len(late))
	}
	kept := bytes.Clone(late[0].Data)
	r.m.Reset()
	if r.m.Active() || r.status(device.PLEventQueue) != 0 || r.m.Load(device.PLEventQueue+device.QueueBase) != 0 {
		t.Error("reset left a queue enabled")
	}
	r.store(device.PLEventQueue+device.QueueBase, 0x30000)
	r.store(device.PLEventQueue+device.QueueSize, 4)
	r.act(device.PLEventQueue+device.QueueCtrl, device.QueueTurnOn)
	if !bytes.Equal(kept, late[0].Data) {
		t.Error("the bytes of an access in flight were reused")
	}
	for _, a := range late {
		r.m.Answered(a.ID, true)
	}
	if len(r.faults) != 1 || r.m.Load(device.PLEventQueue+device.QueueProd) != 0 {
		t.Error("a late answer was used")
	}
	r.hold = false
	for _, a := range r.take() {
		r.answer(a)
	}
	r.run()
	if len(r.faults) != 0 {
		t.Error("the fault was not reported again")
	}
}

// A driver that changes the phase of entries while they are read costs a few accesses per
// doorbell; one that never stops costs one lap.
func TestHostilePhases(t *testing.T) {
	r := newRig(t, 4)
	for range 16 {
		r.put(device.Command{Kind: device.CommandDoorbell})
	}
	turn := uint64(1)
	r.fail = func(a *Access) bool {
		if !a.Write {
			for i := range 16 {
				r.mem[cmdAt-memAt+i*device.QueueEntrySize] ^= byte(turn)
			}
		}
		return false
	}
	before := r.made
	r.bell()
	if n := r.made - before; n > 4 {
		t.Errorf("%d accesses for one doorbell", n)
	}
	r = newRig(t, 4)
	entry := device.Command{Kind: device.CommandDoorbell}
	r.fail = func(a *Access) bool {
		// One more entry is always valid, whatever the lap.
		for i := range 16 {
			q := entry.Encode()
			q[0] |= r.m.cmd.phase()
			q.Put(r.mem[cmdAt-memAt+i*device.QueueEntrySize:])
		}
		return false
	}
	r.bell()
	if len(r.done) != 16 {
		t.Errorf("%d commands taken for one doorbell", len(r.done))
	}
}

// FuzzMachine: whatever is written to registers and memory, and in whatever order answers arrive,
// accesses stay inside the rings or at a SYNC's address, and the machine comes to rest.
func FuzzMachine(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13})
	f.Add(bytes.Repeat([]byte{7, 5, 9, 200, 3, 6, 11}, 20))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := newRig(t, 4)
		r.hold = true
		next := func() uint64 {
			if len(in) == 0 {
				return 0
			}
			v := in[0]
			in = in[1:]
			return uint64(v)
		}
		for len(in) > 0 {
			queue := uint32(device.PLEventQueue)
			if next()&1 != 0 {
				queue = device.PLCommandQueue
			}
			switch next() % 12 {
			case 0:
				r.store(queue+device.QueueBase, next()<<12)
			case 1:
				r.store(queue+device.QueueSize, next()&15)
			case 2:
				r.act(queue+device.QueueCtrl, next()&3)
			case 3:
				r.store(device.PLEventQueue+device.QueueCons, next())
			case 4:
				r.store(queue+device.QueueStatus, 0)
			case 5, 6:
				r.bell()
			case 7:
				r.faults = append(r.faults, fault(len(in)))
			case 8:
				at := next() * 8 % uint64(len(r.mem)-64)
				binary.LittleEndian.PutUint64(r.mem[cmdAt-memAt+at:], next()|next()<<8|next()<<32|next()<<48)
			case 9:
				r.m.Tell(device.Event{Kind: device.EventKind(next()), Index: uint8(next())})
			case 10:
				r.busy = uint32(next())
			default:
				for _, a := range r.take() {
					if next()&7 == 0 {
						r.m.Answered(a.ID, false)
					} else {
						r.answer(a)
					}
				}
			}
			r.run()
			for _, a := range r.held {
				if !a.Write && a.Addr-r.m.cmd.base >= 4096*64 && r.m.read == a || a.Entries && a.Addr-r.m.ev.base >= 4096*64 && r.m.write == a {
					t.Fatalf("access at %#x, outside the ring", a.Addr)
				}
			}
		}
		r.hold = false
		r.run()
	})
}
