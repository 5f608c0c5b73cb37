package faulttest

import (
	"context"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space"
)

// Access is one register access.
type Access struct {
	Window device.WindowID
	Write  bool
	Width  int // bytes
	Offset uint32
	Value  uint64
}

// Message is a message that a packetizer sent.
type Message struct {
	Interface int
	Node      device.NodeID
	Mailbox   uint8
	PDID      device.PDID // of PKTZ_CFG, stamped
	Words     [device.PktzMaxWords]uint64
	Len       int
}

// CallInfo is a page-in.
type CallInfo struct {
	Slot int
	Long bool
	Call Call
}

// Call is a page-in as the node makes it: Run pages in by the slot's pager, and Done ends it.
type Call struct {
	pager space.Pager
	op    *space.Op
}

// Run pages in.
func (c Call) Run() {
	c.op.Start()
	if p, ok := c.pager.(Remapper); ok && c.op.Kind == space.Remap {
		c.op.Paged = p.Again(c.op.VA, c.op.Write)
		c.op.Paged.There = c.op.Paged.Err == nil
	} else {
		c.op.Paged = c.pager.PageIn(c.op.VA, c.op.Pages, c.op.Write)
	}
	c.op.End()
}

// Done ends the page-in.
func (c Call) Done() { c.op.Done() }

// Remapper is a pager that maps a page again.
type Remapper interface {
	Again(va device.VA, write bool) gup.Result
}

// Caps is the node's initial value of CAPS: wide IOVA, 48-bit VA, SVA, TXFIFO, sixteen banks, 512
// entries.
const Caps = device.MaxVABits | device.Slots<<device.CapsBanksShift | device.FIFODepth<<device.CapsDepthShift |
	device.CapsTXFIFO | device.CapsWideIOVA | device.CapsSVA | device.CapsPeek

// Queues is the device's side of queues in memory (docs/spec/queues.md), for tests of a driver
// that uses them.
type Queues interface {
	// Load and Store access their registers.
	Load(offset uint32) uint64
	Store(offset uint32, v uint64)
	// Changed reports that interrupt causes may have changed. It returns true if they are
	// reported in the event queue, so that no vector is sent.
	Changed() bool
}

// Node is a node of registers and a device.Bus to it. It belongs to one goroutine, including
// Post.
type Node struct {
	// Handler handles the vectors.
	Handler device.Handler
	// Record enables logging of accesses in Log.
	Record bool
	Log    []Access
	// Bad are the accesses that reach no register: unaligned, of the wrong width, or to a hole.
	// They read as zero and are ignored on write.
	Bad []Access
	// Sent are the messages of the packetizers, without refused ones.
	Sent []Message
	// Refuse makes that many SENDs of an interface end in STATUS 2. Busy makes its SENDs end in
	// STATUS 1 (busy), until STATUS has been read that many times.
	Refuse, Busy [device.Interfaces]int
	// InFlight are the accesses of a bank that TLBSTATUS still reports.
	InFlight [device.Slots]int
	// Sticky is the number of writes to a bank's FSR that have no effect.
	Sticky [device.Slots]int
	// Err, if not nil, is the result of every access.
	Err error
	// OnAccess, if not nil, is called before every access and may change the node, to simulate
	// changes between two accesses.
	OnAccess func(Access)

	// Queues, if not nil, are the node's queues in memory.
	Queues Queues

	// Hold keeps calls in Held instead of running them.
	Hold bool
	Held []CallInfo
	// Calls are all page-ins.
	Calls []CallInfo
	// Pagers page in for the slots.
	Pagers [device.Slots]space.Pager
	// Vectors counts the vectors sent.
	Vectors [device.Vectors]int
	// Timers are the functions passed to After, and Waits their durations.
	Timers []func()
	Waits  []time.Duration

	windows [device.Windows]window
	rx, tx  fifo
	status  uint32 // IRQ_STATUS
	sent    uint32 // STATUS and not MASK, as last computed
	vectors []int
	posts   []func()
	calls   []CallInfo
}

// New returns a node in its reset state.
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

// Window returns a window.
func (n *Node) Window(w device.WindowID) device.Window { return device.Window{Access: &n.windows[w]} }

// Serve sets h as the handler, delivers what is pending, and waits for ctx.
func (n *Node) Serve(ctx context.Context, h device.Handler) error {
	n.Handler = h
	n.Run()
	<-ctx.Done()
	return nil
}

// Post queues f.
func (n *Node) Post(f func()) { n.posts = append(n.posts, f) }

// PageIn queues a page-in, or holds it.
func (n *Node) PageIn(slot int, op *space.Op, long bool) {
	i := CallInfo{Slot: slot, Long: long, Call: Call{n.Pagers[slot], op}}
	n.Calls = append(n.Calls, i)
	if n.Hold {
		n.Held = append(n.Held, i)
		return
	}
	n.calls = append(n.calls, i)
}

// Release runs the first held call and delivers its completion.
func (n *Node) Release() { n.ReleaseAt(0) }

// ReleaseAt runs held call k and delivers its completion.
func (n *Node) ReleaseAt(k int) {
	if k >= len(n.Held) {
		return
	}
	i := n.Held[k]
	n.Held = append(n.Held[:k], n.Held[k+1:]...)
	i.Call.Run()
	i.Call.Done()
}

// After records a timer; Tick fires it.
func (n *Node) After(d time.Duration, f func()) {
	n.Waits = append(n.Waits, d)
	n.Timers = append(n.Timers, f)
}

// Tick fires the timers recorded so far and runs what they posted.
func (n *Node) Tick() {
	t := n.Timers
	n.Timers = nil
	for _, f := range t {
		f()
	}
	n.Run()
}

// Step delivers one item: a vector, else a posted function, else a call. It returns false if
// nothing is left.
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

// maxSteps ends a Run that does not end by itself.
const maxSteps = 1 << 20

// Run delivers until nothing is left; false if that does not happen.
func (n *Node) Run() bool {
	for range maxSteps {
		if !n.Step() {
			return true
		}
	}
	return false
}

// Get and Get64 return a register's value without an access.
func (n *Node) Get(w device.WindowID, off uint32) uint32 { return n.windows[w].words[off/4] }

func (n *Node) Get64(w device.WindowID, off uint32) uint64 { return n.windows[w].get64(off) }

// Set sets a register, even a read-only one, without an access.
func (n *Node) Set(w device.WindowID, off, v uint32) { n.windows[w].set(off, v) }

// Set64 is Set for 64 bits.
func (n *Node) Set64(w device.WindowID, off uint32, v uint64) { n.windows[w].set64(off, v) }

// Push pushes an entry into RXFIFO; if it is full, the entry is dropped and overflow set.
func (n *Node) Push(e device.FaultEntry, ext uint32) {
	n.rx.push(e.Words(), ext)
	n.irq()
}

// PushTX pushes an entry into TXFIFO.
func (n *Node) PushTX(e device.FaultEntry, ext uint32) {
	n.tx.push(e.Words(), ext)
	n.irq()
}

// PushWords pushes four words into RXFIFO unchanged.
func (n *Node) PushWords(w [4]uint32, ext uint32) {
	n.rx.push(w, ext)
	n.irq()
}

// Levels returns the number of entries in RXFIFO and TXFIFO.
func (n *Node) Levels() (rx, tx int) { return n.rx.level, n.tx.level }

// Fault records a translation fault in a bank: FSR, FAR and FSYNR0 if FSR is zero, otherwise only
// MULTI (spec/hardware.md 5).
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

// GlobalFault records a global fault of a kind of device.GFSR…, or MULTI if one is already
// recorded.
func (n *Node) GlobalFault(kind uint32) {
	w := &n.windows[device.SMMU]
	if old := w.words[(device.SMMUGR0+device.GFSR)/4]; old != 0 {
		kind = old | device.GFSRMULTI
	}
	w.set(device.SMMUGR0+device.GFSR, kind)
	n.irq()
}

// Peek returns entry i of RXFIFO, or of TXFIFO, and its EXT; false past the end.
func (n *Node) Peek(tx bool, i int) (words [4]uint32, ext uint32, ok bool) {
	f := n.fifo(tx)
	if i >= f.level {
		return words, 0, false
	}
	e := &f.ring[(f.head+i)%device.FIFODepth]
	return e.words, e.ext, true
}

// Pop removes the head of RXFIFO, or of TXFIFO.
func (n *Node) Pop(tx bool) {
	f := n.fifo(tx)
	f.head, f.seen = (f.head+1)%device.FIFODepth, 0
	f.level--
}

// Overflow reports whether RXFIFO, or TXFIFO, has lost entries; clear resets that.
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

// irq latches the causes that hold and sends the vectors that have risen.
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

type window struct {
	n     *Node
	id    device.WindowID
	words []uint32
}

func (w *window) set(off, v uint32) { w.words[off/4] = v }

func (w *window) set64(off uint32, v uint64) {
	w.words[off/4], w.words[off/4+1] = uint32(v), uint32(v>>32)
}

func (w *window) get64(off uint32) uint64 {
	return uint64(w.words[off/4]) | uint64(w.words[off/4+1])<<32
}
