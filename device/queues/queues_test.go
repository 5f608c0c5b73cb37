package queues_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/queues"
	"github.com/exanet/pfd/fault/faulttest"
)

const (
	at         = 1 << 32
	commandsAt = 16 << 10 // of the command queue in the memory, and the words behind it
	wordsAt    = 32 << 10
)

// node is a device of registers whose memory is written by the test.
type node struct {
	t     testing.TB
	regs  map[uint32]uint64 // window << 24 | offset
	reads int
	mem   faulttest.Bytes
	posts []func()
	bells int
	q     *queues.Queues
	raise int
	calls []int
	off   int
	came  []device.Event // messages
	told  [][2]uint64    // pages that are wanted, calls, refusals
	prod  uint32         // events
	err   error
}

type window struct {
	n  *node
	id device.WindowID
}

func (w window) key(off uint32) uint32 { return uint32(w.id)<<24 | off }

func (w window) Load(off uint32, _ int) (uint64, error) {
	w.n.reads++
	return w.n.regs[w.key(off)], w.n.err
}

func (w window) Store(off uint32, _ int, v uint64) error {
	if w.id == device.PL && off == device.PLCommandQueue+device.QueueDoorbell {
		w.n.bells++
	}
	if w.id == device.PL && (off == device.PLEventQueue+device.QueueCtrl || off == device.PLCommandQueue+device.QueueCtrl) {
		w.n.regs[w.key(off-device.QueueCtrl+device.QueueStatus)] = v & 1
	}
	w.n.regs[w.key(off)] = v
	return w.n.err
}

func newNode(t testing.TB) *node {
	n := &node{t: t, regs: map[uint32]uint64{}, mem: make(faulttest.Bytes, queues.MemorySize)}
	n.q = queues.New(queues.Config{
		Window: func(id device.WindowID) device.Window { return device.Window{Access: window{n, id}} }, Memory: n.mem, Addr: at,
		Raise: func() { n.raise++ }, Later: func(f func()) { n.posts = append(n.posts, f) },
		Written: func(s int, _ device.VA) { n.calls = append(n.calls, s) }, Off: func() { n.off++ },
		Message: func(m int, source uint64, words *[device.EntryWords]uint64) {
			n.came = append(n.came, device.Event{Index: uint8(m), Cookie: source, Message: *words})
		},
		Wanted: func(page uint64) { n.told = append(n.told, [2]uint64{page}) },
		Called: func(id uint32, words *[device.EntryWords]uint64) {
			n.told = append(n.told, [2]uint64{uint64(id), words[0]})
		},
		Refused: func(iface, channel int) { n.told = append(n.told, [2]uint64{uint64(iface), uint64(channel)}) },
	})
	n.regs[window{n, device.PL}.key(device.PLCommandQueue+device.QueueDoorbell)] = device.DoorbellTakes | device.DoorbellMail
	if err := n.q.Start(); err != nil {
		t.Fatal(err)
	}
	n.q.Deliver(n) // mail and done, which the start has told
	n.calls, n.reads, n.raise = nil, 0, 0
	return n
}

// Interrupt records vectors as 100 and more.
func (n *node) Interrupt(v int) { n.calls = append(n.calls, 100+v) }

func (n *node) run() {
	for len(n.posts) > 0 {
		f := n.posts[0]
		n.posts = n.posts[1:]
		f()
	}
}

// tell writes an event.
func (n *node) tell(e device.Event) { n.entry(e.Encode()) }

func (n *node) entry(q device.QueueEntry) {
	q[0] = q[0]&^1 | uint64(n.prod/256&1^1)
	q.Put(n.mem[n.prod%256*device.QueueEntrySize:])
	n.prod = (n.prod + 1) % 512
}

func (n *node) get(id device.WindowID, off uint32) uint64 {
	n.t.Helper()
	v, err := n.q.Window(id).Read64(off)
	if err != nil {
		n.t.Fatal(err)
	}
	return v
}

func (n *node) set(id device.WindowID, off uint32, v uint64) {
	n.t.Helper()
	if err := n.q.Window(id).Write64(off, v); err != nil {
		n.t.Fatal(err)
	}
}

// command returns the entry of the command queue at an index.
func (n *node) command(i int) (device.Command, bool) {
	q := device.QueueEntryOf(n.mem[commandsAt+i*device.QueueEntrySize:])
	c, err := device.DecodeCommand(&q)
	return c, err == nil && q[0]&1 != 0
}

// The driver finds a fault in the registers that would hold it, and serves it without reading the
// device's registers.
func TestFaultWithoutRegisters(t *testing.T) {
	n := newNode(t)
	e := device.FaultEntry{Source: 7, Transaction: 5, Sequence: 1, PDID: 3, Page: 9, Response: 2}
	w := e.Words()
	n.tell(device.Event{Kind: device.EventFault, Words: w, Ext: 100, Lost: true})
	n.tell(device.Event{Kind: device.EventFault, TX: true, Words: w, Ext: 1})
	n.tell(device.Event{Kind: device.EventBank, Index: 3, Status: device.FSRTF, Syndrome: 0x10, Address: 0x9123})
	n.tell(device.Event{Kind: device.EventGlobal, Status: 2, Address: 0x77})
	n.q.Vector(device.VectorFIFO)
	n.q.Deliver(n)
	if len(n.calls) != 2 || n.calls[0] != 100 || n.calls[1] != 101 {
		t.Errorf("vectors %v, want 0 and 1", n.calls)
	}
	pl, smmu := device.PL, device.SMMU
	for _, r := range []struct {
		id   device.WindowID
		off  uint32
		want uint64
	}{
		{pl, device.PLIRQStatus, 0xf}, {smmu, device.Bank(3, device.FSR), 2}, {smmu, device.Bank(3, device.FAR), 0x9123},
		{smmu, device.Bank(3, device.FSYNR0), 0x10}, {smmu, device.Bank(2, device.FSR), 0}, {smmu, device.GFSR, 2}, {smmu, device.GFAR, 0x77},
		{pl, device.PLRXFIFOStatus, 1 | device.FIFOOverflow}, {pl, device.PLRXFIFOExt, 100},
		{pl, device.PLRXFIFO + 8, uint64(w[2]) | uint64(w[3])<<32}, // reading only the second half pops nothing
		{pl, device.PLRXFIFO, uint64(w[0]) | uint64(w[1])<<32}, {pl, device.PLRXFIFO + 8, uint64(w[2]) | uint64(w[3])<<32},
		{pl, device.PLRXFIFOStatus, device.FIFOEmpty | device.FIFOOverflow}, {pl, device.PLRXFIFO, 0},
		{pl, device.PLTXFIFOStatus, 1}, {pl, device.PLTXFIFOExt, 1},
	} {
		if v := n.get(r.id, r.off); v != r.want {
			t.Errorf("%v+%#x reads %#x, want %#x", r.id, r.off, v, r.want)
		}
	}
	n.set(pl, device.PLRXFIFOStatus, device.FIFOOverflow)
	n.set(smmu, device.Bank(3, device.FSR), 2)
	n.set(smmu, device.GFSR, 2)
	n.set(pl, device.PLIRQStatus, 0xf)
	if s, v := n.get(pl, device.PLRXFIFOStatus), n.get(pl, device.PLIRQStatus); s != device.FIFOEmpty || v != 1<<device.VectorFIFO {
		t.Errorf("RXFIFO_STATUS %#x, IRQ_STATUS %#x with an entry in TXFIFO", s, v)
	}
	base := uint32(3*device.PageSize + device.PktzChannelStride)
	n.set(device.PKTZ, base+device.PktzDestination, 0x1000007)
	n.set(device.PKTZ, base+device.PktzPayload, 0x42)
	n.set(device.PKTZ, base+device.PktzSend, 1)
	if c, ok := n.command(0); !ok || c.Kind != device.CommandSend || c.Index != 3 || c.Channel != 1 || c.Count != 1 || c.Destination != 0x1000007 || c.Words[0] != 0x42 {
		t.Errorf("command %+v", c)
	}
	if s := n.get(device.PKTZ, base+device.PktzStatus); s != device.PktzFree {
		t.Errorf("STATUS %d", s)
	}
	n.run()
	if n.reads != 0 || n.bells != 1 {
		t.Errorf("%d registers read, %d doorbells", n.reads, n.bells)
	}
}

// A doorbell reports how far the event queue has been read, if the device supports that;
// otherwise EVTQ_CONS is written after each half ring.
func TestConsumed(t *testing.T) {
	const bell, cons = uint32(device.PL)<<24 | device.PLCommandQueue + device.QueueDoorbell, uint32(device.PL)<<24 | device.PLEventQueue + device.QueueCons
	for _, takes := range []uint64{0, device.DoorbellTakes} {
		n := newNode(t)
		n.regs[bell] = takes
		if err := n.q.Start(); err != nil {
			t.Fatal(err)
		}
		n.regs[bell] = 0
		for i := range 200 {
			n.tell(device.Event{Kind: device.EventNop})
			n.q.Vector(device.VectorFIFO)
			if i%100 == 99 {
				n.q.Nop()
			}
		}
		wantBell, wantCons := uint64(1), uint64(128)
		if takes != 0 {
			wantBell, wantCons = device.DoorbellCons|200, 0
		}
		if n.regs[bell] != wantBell || n.regs[cons] != wantCons {
			t.Errorf("CMDQ_DOORBELL %#x, EVTQ_CONS %d; want %#x, %d", n.regs[bell], n.regs[cons], wantBell, wantCons)
		}
	}
}

// A full command queue leaves messages in their channels, busy, until an event reports room.
func TestCommandsFull(t *testing.T) {
	n := newNode(t)
	send := func(page, ch uint32, v uint64) uint64 {
		base := page*device.PageSize + ch*device.PktzChannelStride
		n.set(device.PKTZ, base+device.PktzDestination, device.MailboxRequest<<24)
		n.set(device.PKTZ, base+device.PktzPayload, v)
		n.set(device.PKTZ, base+device.PktzSend, 1)
		return n.get(device.PKTZ, base+device.PktzStatus)
	}
	for i := range uint64(255) {
		if s := send(0, 0, i); s != device.PktzFree {
			t.Fatalf("STATUS %d after %d messages", s, i)
		}
	}
	if c, ok := n.command(255); !ok || c.Kind != device.CommandNop {
		t.Errorf("last place: %+v, want a NOP", c)
	}
	if a, b := send(1, 0, 1000), send(2, 3, 1001); a != device.PktzBusy || b != device.PktzBusy {
		t.Errorf("STATUS %d and %d without room", a, b)
	}
	n.run()
	if n.bells != 1 {
		t.Errorf("%d doorbells for all", n.bells)
	}
	n.tell(device.Event{Kind: device.EventNop, Commands: 256})
	n.q.Vector(device.VectorFIFO)
	for i, want := range []uint64{1000, 1001} {
		q := device.QueueEntryOf(n.mem[commandsAt+i*device.QueueEntrySize:])
		if c, err := device.DecodeCommand(&q); err != nil || q[0]&1 != 0 || c.Words[0] != want {
			t.Errorf("second lap: %+v %v", c, err)
		}
	}
	if s := n.get(device.PKTZ, 2*device.PageSize+3*device.PktzChannelStride+device.PktzStatus); s != device.PktzFree {
		t.Errorf("STATUS %d after it was sent", s)
	}
}

// The driver's configuration of a process's mailbox makes its messages come with events, except while
// they are held. A message for an earlier domain of the slot is dropped.
func TestMessages(t *testing.T) {
	n := newNode(t)
	const box, at = 18, device.PLMboxCfg + 8*18
	key := window{n, device.PL}.key(at)
	n.set(device.PL, device.PLPDCfg+8*2, device.PDCfg(5, 0x9000001))
	for v, want := range map[uint64]uint64{5 | device.CfgEnable: 5 | device.CfgEnable | device.MboxEvents, 0: 0} {
		n.set(device.PL, at, v)
		if n.regs[key] != want {
			t.Errorf("MBOX_CFG %#x is written as %#x", v, n.regs[key])
		}
	}
	n.q.Hold(box, true) // of a mailbox that is off
	if n.regs[key] != 0 {
		t.Errorf("MBOX_CFG is %#x", n.regs[key])
	}
	n.set(device.PL, at, 5|device.CfgEnable)
	for hold, want := range map[bool]uint64{true: 5 | device.CfgEnable, false: 5 | device.CfgEnable | device.MboxEvents} {
		n.q.Hold(box, hold)
		if n.regs[key] != want {
			t.Errorf("hold %t: MBOX_CFG is %#x", hold, n.regs[key])
		}
	}
	n.set(device.PL, device.PLMboxCfg+8*3, 7|device.CfgEnable)
	if got := n.regs[window{n, device.PL}.key(device.PLMboxCfg+8*3)]; got != 7|device.CfgEnable {
		t.Errorf("MBOX_CFG of the driver's own mailbox is %#x", got)
	}
	e := device.Event{Kind: device.EventMessage, Index: box, Cookie: 3<<56 | 9, Message: [6]uint64{1, 2, 3}, Generation: 1}
	n.tell(e)
	e.Generation = 2
	n.tell(e)
	e.Generation, e.Index = 1, 3
	n.tell(e)
	n.q.Vector(device.VectorFIFO)
	if len(n.came) != 1 || n.came[0].Index != box || n.came[0].Cookie != e.Cookie || n.came[0].Message != e.Message {
		t.Errorf("messages %+v", n.came)
	}
	if !n.q.Messages() {
		t.Error("no messages by the queues")
	}
	for i, words := range [][]uint64{{1}, {1, 2, 3, 4, 5, 6, 7, 8}} {
		if !n.q.SendMessage(box, 2, 77, 9, words) {
			t.Fatal("no room")
		}
		last := [2]int{0, 2}[i]
		c, ok := n.command(last)
		if !ok || c.Kind != device.CommandSend || c.Index != box || c.Channel != 2 || c.Destination != 77 || c.Number != 9 || int(c.Count) != len(words) || c.Words[0] != 1 {
			t.Errorf("%d words: %+v", len(words), c)
		}
	}
	if c, ok := n.command(1); !ok || c.Kind != device.CommandPayload || c.Words[0] != 7 || c.Words[1] != 8 {
		t.Errorf("words 7 and 8: %+v", c)
	}
	n.regs[window{n, device.PL}.key(device.PLEventQueue+device.QueueStatus)] = device.QueueErrAccess
	n.q.Vector(device.VectorFault)
	if n.q.Messages() || n.q.SendMessage(box, 2, 77, 9, []uint64{1}) {
		t.Error("messages by queues that are off")
	}
}

// The messages of threads come for the domain in the slot that PKTZ_PROT names; pages that a unit wants, calls
// and refusals are passed on; an answer is a command.
func TestThreads(t *testing.T) {
	n := newNode(t)
	const box, slot = 40, 3
	n.set(device.PL, device.PLPDCfg+8*slot, device.PDCfg(5, 0x9000001))
	n.set(device.PL, device.PLPktzProt+8*box, device.PktzProt(0x800000, slot))
	n.set(device.PL, device.PLMboxCfg+8*box, device.ThreadMboxCfg(5, 0x800000))
	if v := n.regs[window{n, device.PL}.key(device.PLMboxCfg+8*box)]; v != device.ThreadMboxCfg(5, 0x800000)|device.MboxEvents {
		t.Errorf("MBOX_CFG of a thread is %#x", v)
	}
	n.tell(device.Event{Kind: device.EventMessage, Index: box, Cookie: 9, Generation: 1})
	n.tell(device.Event{Kind: device.EventMessage, Index: box, Cookie: 9, Generation: 2})
	n.tell(device.Event{Kind: device.EventWant, Address: 0x400007})
	n.tell(device.Event{Kind: device.EventCall, Cookie: 77, Message: [6]uint64{1, 2, 3}})
	n.tell(device.Event{Kind: device.EventRefused, Index: box, Channel: 2})
	n.q.Vector(device.VectorFIFO)
	if len(n.came) != 1 || n.came[0].Index != box {
		t.Errorf("messages %+v", n.came)
	}
	if want := [][2]uint64{{0x400007}, {77, 1}, {box, 2}}; !slices.Equal(n.told, want) {
		t.Errorf("told %v, want %v", n.told, want)
	}
	if !n.q.Answer(77, 3, 9) {
		t.Fatal("no room")
	}
	if c, ok := n.command(0); !ok || c.Kind != device.CommandAnswer || c.Address != 77 || c.Index != 3 || c.Value != 9 {
		t.Errorf("an answer: %+v", c)
	}
}

// Messages other than requests to an R5 are sent through the registers, and their STATUS is the
// device's: messages between pfds depend on register writes before and after.
func TestOtherMessages(t *testing.T) {
	n := newNode(t)
	const base = 15 * device.PageSize
	n.regs[uint32(device.PKTZ)<<24|base+device.PktzStatus] = device.PktzRefused
	for _, m := range []struct{ destination, words uint64 }{{3<<24 | 1, 1}, {device.MailboxRequest<<24 | 1, 2}, {3 << 24, 8}, {3 << 24, 0}} {
		n.set(device.PKTZ, base+device.PktzDestination, m.destination)
		n.set(device.PKTZ, base+device.PktzPayload, 0x33)
		n.set(device.PKTZ, base+device.PktzSend, m.words)
		if n.regs[uint32(device.PKTZ)<<24|base+device.PktzSend] != m.words || n.get(device.PKTZ, base+device.PktzStatus) != device.PktzRefused {
			t.Errorf("%+v was not sent by registers", m)
		}
	}
	if _, ok := n.command(0); ok || n.q.Stats().Commands != 0 {
		t.Error("a command was written")
	}
	n.set(device.PKTZ, base+device.PktzDestination, device.MailboxRequest<<24)
	n.set(device.PKTZ, base+device.PktzSend, 1)
	if s := n.get(device.PKTZ, base+device.PktzStatus); s != device.PktzFree || n.q.Stats().Commands != 1 {
		t.Errorf("a request: STATUS %d", s)
	}
}

// An error disables the event queue: events already reported are served, then the registers, and
// waiting messages are sent through the registers.
func TestBackToRegisters(t *testing.T) {
	n := newNode(t)
	n.set(device.PL, device.PLIRQMask, 0xc)
	n.tell(device.Event{Kind: device.EventFault, Words: [4]uint32{1, 1, 1, 1}})
	n.set(device.PKTZ, device.PktzDestination, device.MailboxRequest<<24)
	for range 256 {
		n.set(device.PKTZ, device.PktzSend, 1)
	}
	n.regs[uint32(device.PL)<<24|device.PLEventQueue+device.QueueStatus] = device.QueueErrAccess
	n.q.Vector(device.VectorFault)
	if n.q.On() || n.regs[uint32(device.PL)<<24|device.PLIRQMask] != 0xc {
		t.Errorf("on %v, IRQ_MASK %#x", n.q.On(), n.regs[uint32(device.PL)<<24|device.PLIRQMask])
	}
	if n.regs[uint32(device.PKTZ)<<24|device.PktzSend] != 1 {
		t.Error("a message that waited was not sent")
	}
	if s := n.get(device.PL, device.PLRXFIFOStatus); s != 1 {
		t.Errorf("RXFIFO_STATUS %#x, want what the queue told", s)
	}
	n.get(device.PL, device.PLRXFIFO)
	n.get(device.PL, device.PLRXFIFO+8)
	n.regs[uint32(device.PL)<<24|device.PLRXFIFOStatus] = 77
	if s := n.get(device.PL, device.PLRXFIFOStatus); s != 77 {
		t.Errorf("RXFIFO_STATUS %d, want the device's", s)
	}
	if s := n.q.Stats(); s.Breaks != 1 {
		t.Errorf("%+v", s)
	}
	gone := newNode(t)
	gone.err = device.ErrGone
	if err := gone.q.Start(); !errors.Is(err, device.ErrGone) || gone.q.On() {
		t.Errorf("starting without a device: %v", err)
	}
	if _, err := gone.q.Window(device.PL).Read32(device.PLRXFIFOStatus); !errors.Is(err, device.ErrGone) {
		t.Errorf("read without a device: %v", err)
	}
}

// Queues that an error has disabled are enabled again when the reported faults are served, and
// every handler is called for events missed meanwhile.
func TestRenew(t *testing.T) {
	n := newNode(t)
	status := uint32(device.PL)<<24 | device.PLEventQueue + device.QueueStatus
	for _, breaks := range []func(){
		func() { n.regs[status] = device.QueueErrAccess; n.q.Vector(device.VectorFault) },
		func() {
			n.tell(device.Event{Kind: device.EventError, Code: device.CommandOff})
			n.q.Vector(device.VectorFIFO)
		},
		func() {
			if err := n.q.Window(device.PL).Write32(device.PLCtrl, device.CtrlReset); err != nil {
				t.Error(err)
			}
		},
	} {
		n.off = 0
		n.tell(device.Event{Kind: device.EventFault, Words: [4]uint32{1, 1, 1, 1}})
		n.q.Vector(device.VectorFIFO)
		if breaks(); n.q.On() || n.off != 1 {
			t.Fatalf("on %v, told %d times", n.q.On(), n.off)
		}
		if _, ok := n.q.Invalidate(0, 0, 0); ok {
			t.Error("an invalidation by a queue that is off")
		}
		if n.get(device.PL, device.PLRXFIFOStatus) == 1 {
			if ok, err := n.q.Renew(); ok || err != nil {
				t.Errorf("renewed with a fault unserved: %v", err)
			}
			n.get(device.PL, device.PLRXFIFO)
			n.get(device.PL, device.PLRXFIFO+8)
		}
		n.calls, n.prod = nil, 0
		if ok, err := n.q.Renew(); !ok || err != nil || !n.q.On() || len(n.calls) != 1 || n.calls[0] != -1 {
			t.Fatalf("renewed %v, %v; calls %v", ok, err, n.calls)
		}
		if ok, err := n.q.Renew(); ok || err != nil {
			t.Errorf("renewed twice: %v", err)
		}
		n.tell(device.Event{Kind: device.EventWords, Index: 4})
		if n.q.Vector(device.VectorFIFO); n.calls[len(n.calls)-1] != 4 {
			t.Errorf("calls %v", n.calls)
		}
		n.q.Deliver(n)
	}
}

// An invalidation is two commands and a word, none shared.
func TestInvalidate(t *testing.T) {
	n := newNode(t)
	var all []queues.Invalidation
	for i := range 16 {
		v, ok := n.q.Invalidate(3, 9, uint64(i))
		if !ok {
			t.Fatalf("%d are too many", i)
		}
		all = append(all, v)
		c, ok := n.command(2 * i)
		s, ok2 := n.command(2*i + 1)
		if !ok || c.Kind != device.CommandInvalidate || c.Index != 3 || c.Page != 9 || c.Pages != uint64(i) ||
			!ok2 || s.Kind != device.CommandSync || s.Index != 3 || s.Address != at+wordsAt+8*uint64(i) {
			t.Errorf("commands %+v, %+v", c, s)
		}
		if over, ok := n.q.Invalidated(v); over || !ok {
			t.Errorf("forgotten before the device says so")
		}
		n.mem.Store(uint32(s.Address-at), s.Value)
		if over, ok := n.q.Invalidated(v); !over || !ok {
			t.Errorf("not forgotten")
		}
	}
	if n.bells != 16 || n.reads != 0 {
		t.Errorf("%d doorbells, %d registers read", n.bells, n.reads)
	}
	if _, ok := n.q.Invalidate(3, 9, 1); ok {
		t.Error("17 at one time")
	}
	n.q.Release(all[5])
	v, ok := n.q.Invalidate(3, 9, 1)
	if over, alive := n.q.Invalidated(v); !ok || over || !alive {
		t.Error("the word of an invalidation that is over counts for another")
	}
	// Completed SYNCs show how many commands the device has taken: no event is needed.
	for _, v := range append(all, v) {
		n.q.Release(v)
	}
	for i := range 1000 {
		v, ok := n.q.Invalidate(i%device.Slots, 0, 0)
		if !ok {
			t.Fatalf("no room for invalidation %d", i)
		}
		q := device.QueueEntryOf(n.mem[commandsAt+(34+2*i+1)%256*device.QueueEntrySize:])
		c, err := device.DecodeCommand(&q)
		if err != nil || c.Kind != device.CommandSync {
			t.Fatalf("%+v, %v", c, err)
		}
		n.mem.Store(uint32(c.Address-at), c.Value)
		if over, ok := n.q.Invalidated(v); !over || !ok {
			t.Fatalf("invalidation %d is not over", i)
		}
		n.q.Release(v)
	}
}

// After lost events every handler is called; invalid reports of a device are ignored.
func TestLies(t *testing.T) {
	n := newNode(t)
	n.tell(device.Event{Kind: device.EventOverflow, Cookie: 1 << device.EventWords})
	n.tell(device.Event{Kind: device.EventWords, Index: 4})
	n.entry(device.QueueEntry{200 << 8})
	n.entry(device.QueueEntry{2<<8 | 99<<32})
	n.tell(device.Event{Kind: device.EventNop, Commands: 300, Cookie: 5}) // neither sent nor requested
	n.q.Vector(device.VectorFIFO)
	if s := n.q.Stats(); s.Bad != 2 || s.Lost != 1 || len(n.calls) != 2 || n.calls[0] != -1 || n.calls[1] != 4 {
		t.Errorf("%+v, calls %v", s, n.calls)
	}
	n.set(device.PKTZ, device.PktzDestination, device.MailboxRequest<<24)
	for range 255 {
		n.set(device.PKTZ, device.PktzSend, 1)
	}
	if n.set(device.PKTZ, device.PktzSend, 1); n.get(device.PKTZ, device.PktzStatus) != device.PktzBusy {
		t.Error("room for commands that the device has not taken")
	}
	if n.q.Answered() {
		t.Error("a NOP answered that was not asked for")
	}
}

// FuzzQueues: whatever is in the rings, a drain is bounded, and the driver's reads of a FIFO end.
func FuzzQueues(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8}, uint8(1))
	f.Add([]byte{1, 1, 0, 0, 3, 0, 0, 0, 1, 1, 1, 1}, uint8(200))
	f.Fuzz(func(t *testing.T, in []byte, step uint8) {
		n := newNode(t)
		for round := range 3 {
			for i := range len(n.mem) / 2 {
				if len(in) > 0 {
					n.mem[i] = in[(i*int(step)+i/64+round)%len(in)]
				}
			}
			n.q.Vector(int(step) % device.Vectors)
			for range 600 {
				if n.get(device.PL, device.PLRXFIFOStatus)&device.FIFOLevelMask == 0 {
					break
				}
				n.get(device.PL, device.PLRXFIFO)
				n.get(device.PL, device.PLRXFIFO+8)
			}
			n.set(device.PKTZ, device.PktzSend, uint64(step))
			n.q.Deliver(n)
			for i := 0; len(n.posts) > 0 && i < 100; i++ {
				f := n.posts[0]
				n.posts = n.posts[1:]
				f()
			}
			if e := n.q.Stats().Events; e > uint64(round+1)*800*256 {
				t.Fatalf("%d events taken", e)
			}
		}
	})
}
