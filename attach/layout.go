package attach

import "github.com/exanet/pfd/device"

// Layout of the attachment's memory (docs/attach.md 3). Values below are defined by this project.
// All words are little-endian and naturally aligned, and both sides use atomic loads and stores of
// their full width.
const (
	PageCount  = 4
	MemorySize = PageCount * device.PageSize
	// ThreadMemorySize is the size of an attachment's memory with the Ports of threads, which follow
	// the four pages: thread i's at MemorySize + PortSize*i.
	ThreadMemorySize = MemorySize + MaxThreads*PortSize

	DescriptorPage = 0 * device.PageSize // 64 descriptors of 64 bytes (messages.md 1)
	DoorbellPage   = 1 * device.PageSize // word 0: channel+1, or 0 (hardware.md 6)
	PktzPage       = 2 * device.PageSize // the Port of the interface: its first page
	WakePage       = 3 * device.PageSize // its second page, which also holds the attachment's flags

	WakeAsleep  = WakePage + 0x00 // u32: pfd stores 1 before it sleeps
	WakeKick    = WakePage + 0x04 // u32: the library adds 1 after publishing
	WakeEvent   = PktzPage + portEvent
	WakeWaiters = PktzPage + portWaiters
	WakeState   = WakePage + 0x10 // u32: State…
	WakeReason  = WakePage + 0x14 // u32: Reason, valid once WakeState is StateEnded
	WakeServed  = WakePage + 0x18 // u32: nlmsg_seq of the fault message that the process served last; futex word
	WakeError   = WakePage + 0x1c // u32: errno of that message's first page, 0: none; written before WakeServed
	// WakeCounts is where pfd writes the process's FaultCounts: a u64 each, in its order; the last
	// two at WakeGone.
	WakeCounts  = WakePage + 0x40
	WakeWatched = WakePage + 0x60 // u32: pfd stores 1 while it reads stamps
	WakeRung    = WakePage + 0x64 // u32: bit i: thread i has published; pfd exchanges it with 0
	WakeGone    = WakePage + 0x68
	// WakeStamps is where the process writes when it rang and when it saw the end: two u64 for
	// each of its channels, ns of CLOCK_MONOTONIC.
	WakeStamps = WakePage + 0xc00
)

// Layout of a Port (defined by this project; docs/attach.md 3): two pages, those of the
// attachment's interface at PktzPage.
const (
	PortSize = 2 * device.PageSize

	portPktz = 0 * device.PageSize // four channels (messages.md 4)
	portWake = 1 * device.PageSize

	portEvent   = portWake + 0x08 // u32: changes with every change for the process; futex word
	portWaiters = portWake + 0x0c // u32: threads of the process in FUTEX_WAIT on the event word
	portEnded   = portWake + 0x10 // u32: of a GSAS thread: 1 if pfd has ended it
	// portMail is the messages of the process's mailbox: a ring of MailSlots messages with two
	// counts that only grow.
	portMail = portWake + 0x100
	mailTail = portMail + 0x00 // u32: messages that pfd has put into the ring
	mailHead = portMail + 0x04 // u32: messages that the process has taken
	mailRing = portMail + 0x40 // message i in slot i mod MailSlots

	mailStride = 0x50 // of a slot
	mailSource = 0x00 // u64: SOURCE (hardware.md 3, window mbox)
	mailWords  = 0x08 // eight u64
	// MailSlots is the number of messages in the ring; further ones wait in the node's own mailbox
	// until the process has taken some and kicked.
	MailSlots = 32
)

// Values of WakeState. Defined by this project.
const (
	StateLive  = 0
	StateEnded = 1
)

// MaxWake is how many threads one Notify wakes at most, so that a hostile process cannot keep the
// engine in the kernel. Further waiters, more than there are channels, wake after their own
// bounded sleeps. Defined by this project.
const MaxWake = 64

// Reason is why an attachment ended. Its values are defined by this project.
type Reason uint32

// The reasons.
const (
	ReasonNone     Reason = 0
	ReasonClosed   Reason = 1 // the process closed it
	ReasonShutdown Reason = 2 // pfd stops
	ReasonKicked   Reason = 3 // ended by an operator (exanetctl domain kick)
	ReasonProcess  Reason = 4 // the process died, or its address space is gone (exec)
	ReasonDevice   Reason = 5 // the device behind pfd is gone
	ReasonProtocol Reason = 6 // the process broke the protocol
	ReasonLost     Reason = 7 // the connection broke: pfd died (set by the library), or could not read from it (sent)
)

// String returns the reason in words.
func (r Reason) String() string {
	switch r {
	case ReasonNone:
		return "none"
	case ReasonClosed:
		return "closed by the process"
	case ReasonShutdown:
		return "pfd stops"
	case ReasonKicked:
		return "ended by an operator"
	case ReasonProcess:
		return "the process or its address space is gone"
	case ReasonDevice:
		return "the device is gone"
	case ReasonProtocol:
		return "the process broke the attachment protocol"
	case ReasonLost:
		return "the connection to pfd broke"
	}
	return "unknown reason"
}
