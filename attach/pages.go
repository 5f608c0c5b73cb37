package attach

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/exanet/pfd/device"
)

// ErrMemory says that memory cannot be an attachment's: wrong size, alignment
// or seals.
var ErrMemory = errors.New("not an attachment's memory")

// Pages is one side's mapping of an attachment's four pages. Its methods may be
// called by any goroutine until the mapping is unmapped. All accesses are
// sequentially consistent atomics of their own width; arguments that name a
// channel are taken modulo the number of channels.
//
// This file holds the package's unsafe pointers into the pages; every offset in
// it is a constant or masked, below MemorySize.
type Pages struct {
	b    []byte
	base unsafe.Pointer
}

// NewPages gives accessors for b, which must be MemorySize bytes, aligned to 8.
// The caller keeps b mapped while the Pages is used. Errors match ErrMemory.
func NewPages(b []byte) (*Pages, error) {
	if len(b) != MemorySize {
		return nil, fmt.Errorf("%w: %d bytes, want %d", ErrMemory, len(b), MemorySize)
	}
	base := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(base)%8 != 0 {
		return nil, fmt.Errorf("%w: address not aligned to 8 bytes", ErrMemory)
	}
	return &Pages{b: b, base: base}, nil
}

// Bytes gives the mapping itself. Use it to identify or unmap the pages, not to
// read them: only the atomic methods are safe against the other side.
func (p *Pages) Bytes() []byte { return p.b }

func (p *Pages) w32(off uint32) *uint32 {
	return (*uint32)(unsafe.Add(p.base, off&(MemorySize-4)))
}

func (p *Pages) w64(off uint32) *uint64 {
	return (*uint64)(unsafe.Add(p.base, off&(MemorySize-8)))
}

// The KeepAlive in these helpers keeps a mapping whose unmapping is tied to the
// Pages (MapMemory) alive until the access is done.

func (p *Pages) load32(off uint32) uint32 {
	v := atomic.LoadUint32(p.w32(off))
	runtime.KeepAlive(p)
	return v
}

func (p *Pages) store32(off, v uint32) {
	atomic.StoreUint32(p.w32(off), v)
	runtime.KeepAlive(p)
}

func (p *Pages) add32(off, v uint32) uint32 {
	n := atomic.AddUint32(p.w32(off), v)
	runtime.KeepAlive(p)
	return n
}

func (p *Pages) load64(off uint32) uint64 {
	v := atomic.LoadUint64(p.w64(off))
	runtime.KeepAlive(p)
	return v
}

func (p *Pages) store64(off uint32, v uint64) {
	atomic.StoreUint64(p.w64(off), v)
	runtime.KeepAlive(p)
}

func (p *Pages) cas64(off uint32, from, to uint64) bool {
	ok := atomic.CompareAndSwapUint64(p.w64(off), from, to)
	runtime.KeepAlive(p)
	return ok
}

func (p *Pages) or64(off uint32, bits uint64) {
	atomic.OrUint64(p.w64(off), bits)
	runtime.KeepAlive(p)
}

func desc(ch int) uint32 {
	return DescriptorPage + device.DescriptorSize*uint32(ch&(device.ChannelsPerSlot-1))
}

func pktz(c int) uint32 {
	return PktzPage + device.PktzChannelStride*uint32(c&(device.PktzChannels-1))
}

// Done gives the done word of channel ch (messages.md 1): one atomic load.
func (p *Pages) Done(ch int) uint32 { return p.load32(desc(ch) + device.DescDone) }

// Status gives the status code and the number of paused blocks of channel ch
// (messages.md 1, reserved_1). It is final once Done is 1 or 3 and was loaded
// before.
func (p *Pages) Status(ch int) (status, paused uint8) {
	v := p.load64(desc(ch) + device.DescReserved1)
	return uint8(v), uint8(v >> 8)
}

// Event gives the event word: it changes whenever a descriptor, the mailbox or
// the state changed.
func (p *Pages) Event() uint32 { return p.load32(WakeEvent) }

// Ended tells whether the attachment has ended, and why.
func (p *Pages) Ended() (Reason, bool) {
	if p.load32(WakeState) == StateLive {
		return ReasonNone, false
	}
	return Reason(p.load32(WakeReason)), true
}

// The library's side.

// Publish writes descriptor d into channel ch and makes it startable: done = 0
// is stored last (release). The channel's done must be final or at reset; d's
// Done, Status, Paused and Abort are not written.
func (p *Pages) Publish(ch int, d *device.Descriptor) {
	o := desc(ch)
	for i, v := range d.Words() {
		switch off := 8 * uint32(i); off {
		case device.DescSize: // size here; done, in the upper half, last of all
			p.store32(o+off, uint32(v))
		case device.DescReserved0:
			p.store64(o+off, v&^device.DescAbort)
		case device.DescReserved1:
			p.store64(o+off, v>>device.DescGenShift<<device.DescGenShift)
		default:
			p.store64(o+off, v)
		}
	}
	p.store32(o+device.DescDone, device.DoneInitialized)
}

// AskAbort sets the abort bit of channel ch. A doorbell must follow.
func (p *Pages) AskAbort(ch int) { p.or64(desc(ch)+device.DescReserved0, device.DescAbort) }

// Ring writes channel ch into the doorbell word, and tells false if an earlier
// doorbell has not been taken yet (then the packetizer's opcode 3 is the way).
func (p *Pages) Ring(ch int) bool {
	return p.cas64(DoorbellPage, 0, uint64(ch&(device.ChannelsPerSlot-1))+1)
}

// Send gives a message to packetizer channel c (0..3): its destination node and
// mailbox and one to eight words; SEND is stored last (release). It tells false,
// and has written nothing, if the channel is still busy or the count is wrong.
// One goroutine at a time may use a channel.
func (p *Pages) Send(c int, dst device.NodeID, mailbox uint8, words ...uint64) bool {
	o := pktz(c)
	if len(words) == 0 || len(words) > device.PktzMaxWords || p.load64(o+device.PktzSend) != 0 {
		return false
	}
	p.store64(o+device.PktzDestination, uint64(dst&device.NodeIDMask)|uint64(mailbox)<<24)
	for i, w := range words {
		p.store64(o+device.PktzPayload+8*uint32(i), w)
	}
	p.store64(o+device.PktzStatus, device.PktzBusy)
	p.store64(o+device.PktzSend, uint64(len(words)))
	return true
}

// SendStatus gives the state of packetizer channel c: device.PktzBusy until pfd
// has taken the message, then device.PktzFree or device.PktzRefused.
func (p *Pages) SendStatus(c int) uint64 {
	o := pktz(c)
	if p.load64(o+device.PktzSend) != 0 {
		return device.PktzBusy
	}
	return p.load64(o + device.PktzStatus)
}

// Kicked says that something was published (a doorbell, a send), and tells
// whether pfd sleeps, so that 1 must be written to the attachment's eventfd.
func (p *Pages) Kicked() (asleep bool) {
	p.add32(WakeKick, 1)
	return p.load32(WakeAsleep) != 0
}

// AddWaiters adds n (1 before, -1 after a wait) to the number of waiting threads.
func (p *Pages) AddWaiters(n int32) { p.add32(WakeWaiters, uint32(n)) }

// SetServed says that the fault message with this number (nlmsg_seq) has been
// served, with the errno by which its first page could not be brought in (0: it
// was), and wakes pfd if it waits for that.
func (p *Pages) SetServed(number, errno uint32) {
	p.store32(WakeError, errno)
	p.store32(WakeServed, number)
	p.wakeWord(WakeServed, 1)
}

// FaultCounts is what pfd knows of a process's page faults, since it attached.
type FaultCounts struct {
	Faults      uint64 // pages that accesses of its domain faulted on
	Pages       uint64 // brought in by pfd, those of the policy's range too
	Failed      uint64 // of the faults, those that cannot be resolved
	Invalidated uint64 // pages taken away that the device had, as far as it is seen
	// Invalidations and Conflicts are the calls that took pages away, and the page-ins
	// that met pages which were just going, as far as they are seen.
	Invalidations, Conflicts uint64
}

// FaultCounts gives what pfd has counted. All are of about one moment.
func (p *Pages) FaultCounts() FaultCounts {
	return FaultCounts{
		p.load64(WakeCounts), p.load64(WakeCounts + 8), p.load64(WakeCounts + 16), p.load64(WakeCounts + 24),
		p.load64(WakeGone), p.load64(WakeGone + 8),
	}
}

// pfd's side.

// SetFaultCounts tells the process what has been counted.
func (p *Pages) SetFaultCounts(c FaultCounts) {
	for i, v := range [...]uint64{c.Faults, c.Pages, c.Failed, c.Invalidated} {
		p.store64(WakeCounts+8*uint32(i), v)
	}
	p.store64(WakeGone, c.Invalidations)
	p.store64(WakeGone+8, c.Conflicts)
}

// Served gives the number of the fault message that the process says it served
// last: any value, and no proof that the pages are there.
func (p *Pages) Served() uint32 { return p.load32(WakeServed) }

// ServedError gives the errno that the process states for that message, 0 none.
func (p *Pages) ServedError() uint32 { return p.load32(WakeError) }

// TakeDoorbell takes what stands in the doorbell word and frees it: 0 none,
// else channel+1 as the process wrote it, any value (hardware.md 6).
func (p *Pages) TakeDoorbell() uint64 {
	v := p.load64(DoorbellPage)
	if v != 0 {
		p.store64(DoorbellPage, 0)
	}
	return v
}

// Descriptor takes one copy of channel ch's descriptor into d, by eight atomic
// loads. What the process writes later changes nothing in the copy; every value
// is possible.
//
// The word with done is loaded first: the process stores done = 0 last, so a copy
// whose done is 0 is all of one descriptor. In another order a copy could have
// the addresses of the channel's former transfer beside the new one's done, since
// a doorbell is announced twice and the second may be looked at late.
func (p *Pages) Descriptor(ch int, d *device.Descriptor) {
	const doneWord = device.DescDone / 8
	var w [device.DescriptorWords]uint64
	o := desc(ch)
	w[doneWord] = p.load64(o + 8*doneWord)
	for i := range w {
		if i != doneWord {
			w[i] = p.load64(o + 8*uint32(i))
		}
	}
	*d = device.DescriptorOf(&w)
}

// SetDone publishes a channel's state: status and paused blocks first, then
// done (release). Notify must follow.
func (p *Pages) SetDone(ch int, done uint32, status, paused uint8) {
	o := desc(ch)
	p.store32(o+device.DescReserved1, uint32(status)|uint32(paused)<<8)
	p.store32(o+device.DescDone, done)
}

// Message is what a process gave to one of its packetizer channels.
type Message struct {
	Node    device.NodeID
	Mailbox uint8
	// Generation is that of the domain whose mailbox is meant, 16..63.
	Generation device.Generation
	Words      [device.PktzMaxWords]uint64
	N          int // words; 0: the process wrote a count that is not 1..8, refuse it
}

// TakeSend copies what packetizer channel c holds into m, and tells whether
// there is anything. SetPktzStatus must follow, or it is found again.
func (p *Pages) TakeSend(c int, m *Message) bool {
	o := pktz(c)
	n := p.load64(o + device.PktzSend)
	if n == 0 {
		return false
	}
	dst := p.load64(o + device.PktzDestination)
	m.Node = device.NodeID(dst & device.NodeIDMask)
	m.Mailbox = uint8(dst >> 24)
	m.Generation = device.Generation(dst >> 32)
	m.N = 0
	if n > device.PktzMaxWords {
		return true
	}
	m.N = int(n)
	for i := range m.Words {
		m.Words[i] = 0
		if i < m.N {
			m.Words[i] = p.load64(o + device.PktzPayload + 8*uint32(i))
		}
	}
	return true
}

// SetPktzStatus answers a message: the status (device.PktzFree or
// device.PktzRefused), then SEND = 0, which frees the channel.
func (p *Pages) SetPktzStatus(c int, status uint64) {
	o := pktz(c)
	p.store64(o+device.PktzStatus, status)
	p.store64(o+device.PktzSend, 0)
}

// Kick gives the kick word: it differs from the value seen last when the
// process has published something.
func (p *Pages) Kick() uint32 { return p.load32(WakeKick) }

// SetAsleep says whether pfd sleeps. After SetAsleep(true) pfd must look at
// Kick once more before it sleeps: either it sees the kick, or the process sees
// the flag (both sides store first, then load).
func (p *Pages) SetAsleep(asleep bool) {
	v := uint32(0)
	if asleep {
		v = 1
	}
	p.store32(WakeAsleep, v)
}

// Notify says that something changed for the process, and wakes its waiters if
// it has any. Without waiters it is two atomics and no system call.
func (p *Pages) Notify() {
	p.add32(WakeEvent, 1)
	if p.load32(WakeWaiters) != 0 {
		p.wake()
	}
}

// Waiting tells whether a thread of the process sleeps until something changes, or
// is about to: one that is not seen yet looks once more before it sleeps.
func (p *Pages) Waiting() bool { return p.load32(WakeWaiters) != 0 }

// End marks the attachment as ended and wakes all waiters. pfd calls it only
// when no access of the domain is in flight any more.
func (p *Pages) End(r Reason) {
	p.store32(WakeReason, uint32(r))
	p.store32(WakeState, StateEnded)
	p.add32(WakeEvent, 1)
	p.wake()
}

// touch has each page be there, and changes nothing.
func (p *Pages) touch() {
	for page := range uint32(PageCount) {
		p.add32(page*device.PageSize, 0)
	}
}

// reset gives fresh pages their first content: all zero but for done.
func (p *Pages) reset() {
	for ch := range device.ChannelsPerSlot {
		v := device.DoneReset
		if ch >= device.WriteChannels {
			v = device.DoneReadReset
		}
		p.store32(desc(ch)+device.DescDone, v)
	}
}
