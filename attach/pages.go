package attach

import (
	"errors"
	"fmt"

	"github.com/exanet/pfd/device"
)

// ErrMemory says that memory cannot be an attachment's: wrong size, alignment or seals.
var ErrMemory = errors.New("not an attachment's memory")

// Pages is one side's mapping of an attachment's memory: the descriptors, the doorbell, the Port of
// the attachment's own interface with its flags, and the Ports of its threads, if the process has
// requested them. Its methods are safe for concurrent use until the mapping is unmapped. All accesses are sequentially consistent atomics of their own
// width. A channel argument is taken modulo the number of channels.
type Pages struct {
	Port
	words
	b       []byte
	threads [MaxThreads]Port // with ThreadMemorySize
}

// NewPages returns accessors for b, which must be MemorySize or ThreadMemorySize bytes, aligned to 8.
// The caller keeps b mapped while the Pages is used. Errors match ErrMemory.
func NewPages(b []byte) (*Pages, error) {
	if len(b) != MemorySize && len(b) != ThreadMemorySize {
		return nil, fmt.Errorf("%w: %d bytes, want %d, or %d with threads", ErrMemory, len(b), MemorySize, ThreadMemorySize)
	}
	w, ok := wordsOf(b)
	if !ok {
		return nil, fmt.Errorf("%w: address not aligned to 8 bytes", ErrMemory)
	}
	p := &Pages{Port: Port{w.part(PktzPage)}, words: w, b: b}
	if p.HasThreads() {
		for i := range p.threads {
			p.threads[i] = Port{w.part(MemorySize + PortSize*uint32(i))}
		}
	}
	return p, nil
}

// HasThreads reports whether the memory has the Ports of threads.
func (p *Pages) HasThreads() bool { return len(p.b) == ThreadMemorySize }

// Thread returns the Port of thread i, below MaxThreads. The memory must have them.
func (p *Pages) Thread(i int) *Port { return &p.threads[i&(MaxThreads-1)] }

// Bytes returns the mapping itself. Use it to identify or unmap the pages, not to read them: only
// the atomic methods are safe against the other side.
func (p *Pages) Bytes() []byte { return p.b }

func desc(ch int) uint32 {
	return DescriptorPage + device.DescriptorSize*uint32(ch&(device.ChannelsPerSlot-1))
}

// Done returns the done word of channel ch (messages.md 1): one atomic load.
func (p *Pages) Done(ch int) uint32 { return p.load32(desc(ch) + device.DescDone) }

// Status returns the status code and the number of paused blocks of channel ch (messages.md 1,
// reserved_1). It is final if an earlier load of Done returned 1 or 3.
func (p *Pages) Status(ch int) (status, paused uint8) {
	v := p.load64(desc(ch) + device.DescReserved1)
	return uint8(v), uint8(v >> 8)
}

// Ended reports whether the attachment has ended, and why.
func (p *Pages) Ended() (Reason, bool) {
	if p.load32(WakeState) == StateLive {
		return ReasonNone, false
	}
	return Reason(p.load32(WakeReason)), true
}

// The library's side.

// Publish writes descriptor d into channel ch and makes it startable: done = 0 is stored last
// (release). The channel's done must be final or at reset; d's Done, Status, Paused and Abort are
// not written.
func (p *Pages) Publish(ch int, d *device.Descriptor) {
	words := d.Words()
	words[device.DescReserved0/8] &^= device.DescAbort
	device.StoreDescriptor(desc(ch), &words, p.store32, p.store64)
}

// AskAbort sets the abort bit of channel ch. A doorbell must follow.
func (p *Pages) AskAbort(ch int) { p.or64(desc(ch)+device.DescReserved0, device.DescAbort) }

// Ring writes channel ch into the doorbell word. It returns false if pfd has not taken an earlier
// doorbell yet; then use the packetizer's opcode 3.
func (p *Pages) Ring(ch int) bool {
	return p.cas64(DoorbellPage, 0, uint64(ch&(device.ChannelsPerSlot-1))+1)
}

// Kick announces that something was published (a doorbell, a send). It reports whether pfd
// sleeps, so that the caller must write 1 to the attachment's eventfd.
func (p *Pages) Kick() (asleep bool) {
	p.add32(WakeKick, 1)
	return p.load32(WakeAsleep) != 0
}

// RingThread says that thread i has published something. Kick must follow.
func (p *Pages) RingThread(i int) { p.or32(WakeRung, 1<<(i&(MaxThreads-1))) }

// SetServed records that the fault message with this number (nlmsg_seq) has been served, with the
// errno of paging in its first page (0: none), and wakes pfd if it waits for that.
func (p *Pages) SetServed(number, errno uint32) {
	p.store32(WakeError, errno)
	p.store32(WakeServed, number)
	p.wakeWord(WakeServed, 1)
}

// FaultCounts are pfd's counts of a process's page faults since it attached.
type FaultCounts struct {
	Faults      uint64 // pages that accesses of its domain faulted on
	Pages       uint64 // paged in by pfd, those of the policy's range, too
	Failed      uint64 // of the faults, those that cannot be resolved
	Invalidated uint64 // pages removed that the device had, as far as pfd knows
	// Invalidations and Conflicts count the calls that removed pages, and the page-ins of pages
	// that were being removed, as far as pfd knows.
	Invalidations, Conflicts uint64
}

// FaultCounts returns pfd's counts, all from about one moment.
func (p *Pages) FaultCounts() FaultCounts {
	return FaultCounts{
		p.load64(WakeCounts), p.load64(WakeCounts + 8), p.load64(WakeCounts + 16), p.load64(WakeCounts + 24),
		p.load64(WakeGone), p.load64(WakeGone + 8),
	}
}

// pfd's side.

// SetFaultCounts publishes the counts to the process.
func (p *Pages) SetFaultCounts(c FaultCounts) {
	for i, v := range [...]uint64{c.Faults, c.Pages, c.Failed, c.Invalidated} {
		p.store64(WakeCounts+8*uint32(i), v)
	}
	p.store64(WakeGone, c.Invalidations)
	p.store64(WakeGone+8, c.Conflicts)
}

// Served returns the number of the fault message that the process claims to have served last. It
// may be any value and proves nothing about the pages.
func (p *Pages) Served() uint32 { return p.load32(WakeServed) }

// ServedError returns the errno that the process reports for that message, 0: none.
func (p *Pages) ServedError() uint32 { return p.load32(WakeError) }

// TakeDoorbell takes and clears the doorbell word: 0 none, else channel+1 as the process wrote it,
// any value (hardware.md 6).
func (p *Pages) TakeDoorbell() uint64 {
	v := p.load64(DoorbellPage)
	if v != 0 {
		p.store64(DoorbellPage, 0)
	}
	return v
}

// TakeRung takes and clears the bits of the threads that have published something. The process can
// set any bits.
func (p *Pages) TakeRung() uint32 {
	if p.load32(WakeRung) == 0 {
		return 0
	}
	return p.swap32(WakeRung, 0)
}

// ResetThread clears the Port of thread i for a new thread. The words of waiters stay, because the
// waiters of the thread before count themselves.
func (p *Pages) ResetThread(i int) {
	t := p.Thread(i)
	for off := uint32(0); off < PortSize; off += 8 {
		if off != portEvent { // and portWaiters, the other half of the word
			t.store64(off, 0)
		}
	}
	t.add32(portEvent, 1)
}

// EndThread says that pfd has ended thread i, and wakes its waiters.
func (p *Pages) EndThread(i int) {
	t := p.Thread(i)
	t.store32(portEnded, 1)
	t.Notify()
}

// Descriptor copies channel ch's descriptor into d by eight atomic loads. Later writes of the
// process do not change the copy; every value is possible.
//
// The word with done is loaded first: the process stores done = 0 last, so a copy whose done is 0
// is of one descriptor. In another order a copy could combine the addresses of the channel's
// former transfer with the new one's done, because a doorbell is announced twice and pfd may read
// the second late.
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

// SetDone publishes a channel's state: status and paused blocks first, then done (release). Notify
// must follow.
func (p *Pages) SetDone(ch int, done uint32, status, paused uint8) {
	o := desc(ch)
	p.store32(o+device.DescReserved1, uint32(status)|uint32(paused)<<8)
	p.store32(o+device.DescDone, done)
}

// Kicks returns how often the process has kicked (Kick), modulo 2^32. It has changed if the process
// has published something since the last call.
func (p *Pages) Kicks() uint32 { return p.load32(WakeKick) }

// SetAsleep says whether pfd sleeps. After SetAsleep(true) pfd must check Kicks again before it
// sleeps: either pfd sees the kick, or the process sees the flag (both sides store first, then
// load).
func (p *Pages) SetAsleep(asleep bool) {
	v := uint32(0)
	if asleep {
		v = 1
	}
	p.store32(WakeAsleep, v)
}

// End marks the attachment as ended and wakes all waiters. pfd calls it only when no access of the
// domain is in flight.
func (p *Pages) End(r Reason) {
	p.store32(WakeReason, uint32(r))
	p.store32(WakeState, StateEnded)
	p.add32(WakeEvent, 1)
	p.wake()
}

// touch makes each page present and changes nothing.
func (p *Pages) touch() {
	for page := range uint32(PageCount) {
		p.add32(page*device.PageSize, 0)
	}
}

// reset initializes new pages: all zero except done.
func (p *Pages) reset() {
	for ch := range device.ChannelsPerSlot {
		v := device.DoneReset
		if ch >= device.WriteChannels {
			v = device.DoneReadReset
		}
		p.store32(desc(ch)+device.DescDone, v)
	}
}
