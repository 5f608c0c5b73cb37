package faulttest

import (
	"context"
	"time"

	"github.com/exanet/pfd/device"
)

// Access is one register access.
type Access struct {
	Window device.WindowID
	Write  bool
	Width  int // bytes
	Offset uint32
	Value  uint64
}

// Message is what a packetizer sent.
type Message struct {
	Interface int
	Node      device.NodeID
	Mailbox   uint8
	PDID      device.PDID // of PKTZ_CFG, stamped
	Words     [device.PktzMaxWords]uint64
	Len       int
}

// CallInfo is a call that Bus.Do was given.
type CallInfo struct {
	Slot int
	Long bool
	Call device.Call
}

// Caps is what the node's CAPS reads at first: wide IOVA, 48-bit VA, SVA,
// TXFIFO, sixteen banks, 512 entries.
const Caps = device.MaxVABits | device.Slots<<device.CapsBanksShift | device.FIFODepth<<device.CapsDepthShift |
	device.CapsTXFIFO | device.CapsWideIOVA | device.CapsSVA | device.CapsPeek

// Queues is the device's side of queues in memory (docs/spec/queues.md), for tests of a
// driver that works by them.
type Queues interface {
	// Load and Store access their registers.
	Load(offset uint32) uint64
	Store(offset uint32, v uint64)
	// Changed says that causes may have come or gone. True: they go by the event
	// queue, and no vector is sent for them.
	Changed() bool
}

// Node is a node of registers and a device.Bus to it. It belongs to one
// goroutine, Post excepted by nothing: tests run on one.
type Node struct {
	// Handler takes the vectors.
	Handler device.Handler
	// Record has accesses noted in Log.
	Record bool
	Log    []Access
	// Bad are the accesses that reach no register: unaligned, of another width,
	// or to a hole. They read as zero and are ignored on write.
	Bad []Access
	// Sent are the messages of the packetizers; refused ones are not in it.
	Sent []Message
	// Refuse and Busy have the next so many SENDs of an interface end in STATUS
	// 2, or stay in STATUS 1 (for good: Busy counts looks at STATUS).
	Refuse, Busy [device.Interfaces]int
	// InFlight are the accesses of a bank that TLBSTATUS still reports.
	InFlight [device.Slots]int
	// Sticky has so many writes to a bank's FSR do nothing.
	Sticky [device.Slots]int
	// Err, where not nil, is what every access gives.
	Err error
	// OnAccess, where not nil, sees every access before it happens, and may
	// change the node: a device that moves between two accesses.
	OnAccess func(Access)

	// Queues, where not nil, are the node's queues in memory.
	Queues Queues

	// Hold keeps calls in Held instead of running them.
	Hold bool
	Held []CallInfo
	// Calls are all calls given to Do.
	Calls []CallInfo
	// Vectors counts the vectors sent.
	Vectors [device.Vectors]int
	// Timers are the functions that After was given, and Waits how long each
	// wanted to wait.
	Timers []func()
	Waits  []time.Duration

	windows [device.Windows]window
	rx, tx  fifo
	status  uint32 // IRQ_STATUS
	sent    uint32 // STATUS and not MASK, as of the last look
	vectors []int
	posts   []func()
	calls   []CallInfo
}

// New makes a node at reset.
func New() *Node {
	n := &Node{}
	for w := range device.Windows {
		n.windows[w] = window{n: n, id: w, words: make([]uint32, w.Size()/4)}
	}
	pl := &n.windows[device.PL]
	pl.set(device.PLID, device.IDValue)
	pl.set(device.PLVersion, device.VersionValue)
	pl.set64(device.PLCaps, Caps)
	pl.set(device.PLTimeoutUS, device.TimeoutReset)
	pl.set(device.PLGuardUS, device.GuardReset)
	pl.set(device.PLOutstanding, device.OutstandingReset)
	smmu := &n.windows[device.SMMU]
	smmu.set(device.SMMUGR0+device.SCR0, device.SCR0Client)
	smmu.set(device.SMMUGR0+device.IDR1, device.Slots)
	return n
}

// Window gives a window.
func (n *Node) Window(w device.WindowID) device.Window { return &n.windows[w] }

// Serve takes h as the handler, delivers what is there, and waits for ctx.
func (n *Node) Serve(ctx context.Context, h device.Handler) error {
	n.Handler = h
	n.Run()
	<-ctx.Done()
	return nil
}

// Post queues f.
func (n *Node) Post(f func()) { n.posts = append(n.posts, f) }

// Do queues a call, or holds it.
func (n *Node) Do(slot int, c device.Call, long bool) {
	i := CallInfo{Slot: slot, Long: long, Call: c}
	n.Calls = append(n.Calls, i)
	if n.Hold {
		n.Held = append(n.Held, i)
		return
	}
	n.calls = append(n.calls, i)
}

// Release lets the first held call run and delivers its end.
func (n *Node) Release() { n.ReleaseAt(0) }

// ReleaseAt lets held call k run and delivers its end.
func (n *Node) ReleaseAt(k int) {
	if k >= len(n.Held) {
		return
	}
	i := n.Held[k]
	n.Held = append(n.Held[:k], n.Held[k+1:]...)
	i.Call.Run()
	i.Call.Done()
}

// After notes a timer; it fires by Tick.
func (n *Node) After(d time.Duration, f func()) {
	n.Waits = append(n.Waits, d)
	n.Timers = append(n.Timers, f)
}

// Tick fires the timers noted so far and runs what they posted.
func (n *Node) Tick() {
	t := n.Timers
	n.Timers = nil
	for _, f := range t {
		f()
	}
	n.Run()
}

// Step delivers one thing: a vector, else a posted function, else a call. It
// gives false when nothing is left.
func (n *Node) Step() bool {
	switch {
	case len(n.vectors) > 0:
		v := n.vectors[0]
		n.vectors = n.vectors[:copy(n.vectors, n.vectors[1:])]
		if n.Handler != nil {
			n.Handler.Interrupt(v)
		}
	case len(n.posts) > 0:
		f := n.posts[0]
		n.posts = n.posts[:copy(n.posts, n.posts[1:])]
		f()
	case len(n.calls) > 0:
		i := n.calls[0]
		n.calls = n.calls[:copy(n.calls, n.calls[1:])]
		i.Call.Run()
		i.Call.Done()
	default:
		return false
	}
	return true
}

// maxSteps ends a Run that would not end by itself.
const maxSteps = 1 << 20

// Run delivers until nothing is left; false when that does not happen.
func (n *Node) Run() bool {
	for range maxSteps {
		if !n.Step() {
			return true
		}
	}
	return false
}

// Get and Get64 look at a register without an access; Set and Set64 put a value
// there, read-only ones too.
func (n *Node) Get(w device.WindowID, off uint32) uint32   { return n.windows[w].words[off/4] }
func (n *Node) Get64(w device.WindowID, off uint32) uint64 { return n.windows[w].get64(off) }

// Set puts a value into a register without an access.
func (n *Node) Set(w device.WindowID, off, v uint32) { n.windows[w].set(off, v) }

// Set64 is Set for 64 bits.
func (n *Node) Set64(w device.WindowID, off uint32, v uint64) { n.windows[w].set64(off, v) }

// Push puts an entry into RXFIFO; a full one drops it and sets overflow.
func (n *Node) Push(e device.FaultEntry, ext uint32) {
	n.rx.push(e.Words(), ext)
	n.irq()
}

// PushTX puts an entry into TXFIFO.
func (n *Node) PushTX(e device.FaultEntry, ext uint32) {
	n.tx.push(e.Words(), ext)
	n.irq()
}

// PushWords puts four words into RXFIFO as they are.
func (n *Node) PushWords(w [4]uint32, ext uint32) {
	n.rx.push(w, ext)
	n.irq()
}

// Levels gives how many entries RXFIFO and TXFIFO hold.
func (n *Node) Levels() (rx, tx int) { return n.rx.level, n.tx.level }

// Fault records a translation fault in a bank: FSR, FAR and FSYNR0 where FSR is
// zero, else MULTI alone (spec/hardware.md 5).
func (n *Node) Fault(bank int, va device.VA, write bool) {
	w := &n.windows[device.SMMU]
	fsr := device.Bank(bank, device.FSR)
	if w.words[fsr/4] != 0 {
		w.words[fsr/4] |= device.FSRMULTI
		return
	}
	w.set(fsr, device.FSRTF)
	w.set64(device.Bank(bank, device.FAR), uint64(va))
	syn := uint32(0)
	if write {
		syn = device.FSYNR0WNR
	}
	w.set(device.Bank(bank, device.FSYNR0), syn)
	n.irq()
}

// GlobalFault records a global fault, of a kind of device.GFSR…, or MULTI where one
// is recorded already.
func (n *Node) GlobalFault(kind uint32) {
	w := &n.windows[device.SMMU]
	if old := w.words[(device.SMMUGR0+device.GFSR)/4]; old != 0 {
		kind = old | device.GFSRMULTI
	}
	w.set(device.SMMUGR0+device.GFSR, kind)
	n.irq()
}

// Peek gives entry i of RXFIFO, or of TXFIFO, and its EXT; false past the end.
func (n *Node) Peek(tx bool, i int) (words [4]uint32, ext uint32, ok bool) {
	f := n.fifo(tx)
	if i >= f.level {
		return words, 0, false
	}
	e := &f.ring[(f.head+i)%device.FIFODepth]
	return e.words, e.ext, true
}

// Pop takes the head of RXFIFO, or of TXFIFO.
func (n *Node) Pop(tx bool) {
	f := n.fifo(tx)
	f.head, f.seen = (f.head+1)%device.FIFODepth, 0
	f.level--
}

// Overflow tells whether RXFIFO, or TXFIFO, has lost entries; clear has it forgotten.
func (n *Node) Overflow(tx, clear bool) bool {
	f := n.fifo(tx)
	was := f.overflow
	f.overflow = was && !clear
	return was
}

func (n *Node) fifo(tx bool) *fifo {
	if tx {
		return &n.tx
	}
	return &n.rx
}

// Vector sends a vector.
func (n *Node) Vector(v int) {
	n.Vectors[v]++
	n.vectors = append(n.vectors, v)
}

// irq latches the causes that hold and sends the vectors that rise.
func (n *Node) irq() {
	if n.Queues != nil && n.Queues.Changed() {
		return
	}
	w := &n.windows[device.SMMU]
	if w.words[(device.SMMUGR0+device.GFSR)/4] != 0 {
		n.status |= 1 << device.VectorFault
	}
	for b := range device.Slots {
		if w.words[device.Bank(b, device.FSR)/4] != 0 {
			n.status |= 1 << device.VectorFault
		}
	}
	if n.rx.level+n.tx.level > 0 {
		n.status |= 1 << device.VectorFIFO
	}
	open := n.status &^ n.windows[device.PL].words[device.PLIRQMask/4]
	for v := range device.Vectors {
		if open&^n.sent&(1<<v) != 0 {
			n.Vector(v)
		}
	}
	n.sent = open
}
