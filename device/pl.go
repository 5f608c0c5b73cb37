package device

// Window pl: the control page of a node (spec/hardware.md 3). Values are defined by this project:
// the papers name the blocks and give no addresses.
const (
	PLID          = 0x000 // RO "EXAN"
	PLVersion     = 0x004 // RO major[31:16] minor[15:0]
	PLCaps        = 0x008 // RO 64 bits, Caps…
	PLNodeID      = 0x010 // RW [21:0]
	PLCtrl        = 0x018 // RW Ctrl…
	PLIRQStatus   = 0x020 // W1C, one bit per vector
	PLIRQMask     = 0x024 // RW, 1 masked
	PLTimeoutUS   = 0x030 // RW block time-out, microseconds
	PLGuardUS     = 0x038 // RW guard time-out of a paused block, microseconds
	PLOutstanding = 0x040 // RW blocks in flight per transfer
	PLCounters    = 0x100 // RO 64 bits each, in the order of Counter

	PLRXFIFO       = 0x1000 // 128-bit head of the destination-fault FIFO
	PLRXFIFOStatus = 0x1010
	PLRXFIFOExt    = 0x1020
	PLTXFIFO       = 0x1100 // the same for source faults, with CapsTXFIFO
	PLTXFIFOStatus = 0x1110
	PLTXFIFOExt    = 0x1120

	PLPktzCfg  = 0x2000 // +8n, n 0..63
	PLMboxCfg  = 0x2400 // +8n, n 0..63
	PLPktzProt = 0x2800 // +8n, n 0..63, with CapsGSAS
	PLPDCfg    = 0x3000 // +8n, n 0..15
	PLPDPeers  = 0x3400 // +32n+8k, n 0..15, k 0..3

	PLGSASCtrl  = 0x3800 // RW [0] enable, with CapsGSAS
	PLGSASPage  = 0x3808 // RW the pages that are selected
	PLGSASEntry = 0x3810 // RW their entry: writing it takes GSAS_BACK over
	PLGSASBack  = 0x3818 // RW where their bytes are
	PLGSASGrant = 0x3820 // RW a grant to another tree
	PLGSASWant  = 0x3828 // RO a page that is wanted and not present; reading pops it

	PLWinSelect = 0x3900 // RW window [5:0] of slot [11:8], with CapsWindows
	PLWinVA     = 0x3908 // RW address of the selected window
	PLWinBytes  = 0x3910 // RW its size
	PLWinCtrl   = 0x3918 // RW peer, rights, enable: writing it takes address and size over

	PLWords        = 0x07f80 // RO 64 bits, +8n, n 0..15: completion words written into slot n's memory, with CapsPeek
	PLPeekRXFIFO   = 0x08000 // peek windows (docs/spec/peek.md), with CapsPeek
	PLPeekTXFIFO   = 0x0c000 // with CapsPeek and CapsTXFIFO
	PLPeekChannels = 0x10000
)

// Values and reset values of the control page (spec/hardware.md 3). GuardReset is defined by this
// project.
const (
	IDValue      = 0x4e415845
	VersionValue = 1 << 16 // major 1, minor 0

	TimeoutReset     = 20000 // 001: 20 ms after 200 ms at first
	GuardReset       = 100000
	OutstandingReset = 2 // 001
)

// CAPS (spec/hardware.md 3). CapsQueues (docs/spec/queues.md), CapsPeek (docs/spec/peek.md),
// CapsWindows and CapsGSAS (docs/spec/gsas.md) are defined by this project.
const (
	CapsVABitsMask  = 0x3f // [5:0]
	CapsBanksShift  = 6    // [10:6]
	CapsDepthShift  = 11   // [20:11]
	CapsTXFIFO      = 1 << 24
	CapsWideIOVA    = 1 << 25
	CapsStall       = 1 << 26
	CapsSVA         = 1 << 27
	CapsQueues      = 1 << 28
	CapsPeek        = 1 << 29
	CapsWindows     = 1 << 30
	CapsGSAS        = 1 << 31
	CapsBanksMask   = 0x1f
	CapsDepthMask   = 0x3ff
	CtrlEnable      = 1 << 0
	CtrlReset       = 1 << 1 // self-clearing
	FIFOLevelMask   = 0x3ff  // RXFIFO_STATUS [9:0]
	FIFOOverflow    = 1 << 16
	FIFOEmpty       = 1 << 17
	FIFOFull        = 1 << 18
	CfgEnable       = 1 << 63 // PKTZ_CFG, MBOX_CFG, PD_CFG
	MboxEvents      = 1 << 62 // MBOX_CFG: messages of the mailbox go into events (spec/queues.md)
	PktzFormGSAS    = 1 << 62 // PKTZ_CFG: 0 the R5 words, 1 GSAS
	GenerationShift = 16      // PD_CFG [47:16]
	PktzThreadShift = 16      // PKTZ_CFG [39:16]: interface [23:18], node [17:0]
	PDIDMask        = 0xffff
	PeersPerSlot    = 16 // sixteen PDIDs in four registers
)

// PDCfg returns PD_CFG of a slot that belongs to a domain (spec/hardware.md 3; the generation is
// defined by this project).
func PDCfg(p PDID, g Generation) uint64 {
	return uint64(p) | uint64(g)<<GenerationShift | CfgEnable
}

// SplitPDCfg decodes PD_CFG. No domain has PDID 0 or generation 0: a slot with one of them is not
// enabled.
func SplitPDCfg(v uint64) (p PDID, g Generation, enabled bool) {
	p, g = PDID(v), Generation(v>>GenerationShift)
	return p, g, v&CfgEnable != 0 && p != 0 && g != 0
}

// Counter identifies one of the node's 64-bit counters, at PLCounters + 8*Counter.
type Counter uint8

// The counters in the order of spec/hardware.md 3. Guards is defined by this project.
const (
	TXPackets Counter = iota
	RXPackets
	TXBlocks
	RXBlocks
	Acks
	Nacks0 // Nacks0+code
	Nacks1
	Nacks2
	Nacks3
	Nacks4
	Nacks5
	Nacks6
	Nacks7
	Timeouts
	Retransmits
	RAPFRx
	RAPFStale
	RAPFDenied
	FIFOPush
	FIFODedup
	FIFOOverflows
	TLBL1Hit
	TLBL2Hit
	Walks
	FaultTF
	FaultPF
	BadAccess
	MsgDropped
	AckStale
	PktStale
	CRCHeader
	CRCPayload
	MboxRefused
	DoorbellDenied
	Guards // paused blocks retransmitted by the guard time-out
	Counters
)

var counterNames = [Counters]string{
	"tx_packets", "rx_packets", "tx_blocks", "rx_blocks", "acks",
	"nacks_0", "nacks_1", "nacks_2", "nacks_3", "nacks_4", "nacks_5", "nacks_6", "nacks_7",
	"timeouts", "retransmits", "rapf_rx", "rapf_stale", "rapf_denied",
	"fifo_push", "fifo_dedup", "fifo_overflow",
	"tlb_l1_hit", "tlb_l2_hit", "walks", "fault_tf", "fault_pf", "bad_access",
	"msg_dropped", "ack_stale", "pkt_stale", "crc_header", "crc_payload",
	"mbox_refused", "doorbell_denied", "guards",
}

// String returns the counter's name in lower case, as in metrics.
func (c Counter) String() string {
	if c >= Counters {
		return "counter?"
	}
	return counterNames[c]
}

// Offset returns the counter's offset in window pl.
func (c Counter) Offset() uint32 { return PLCounters + 8*uint32(c) }

// Window btcm (spec/hardware.md 6; 001 §3.2). The contents of the doorbell words are defined by
// this project.
const (
	BTCMDescriptors = 0x00000 // + PageSize*slot: 64 channel descriptors of 64 bytes
	BTCMDoorbells   = 0x10000 // + PageSize*slot: word 0 is channel+1, or 0
)

// Window mbox, page n (spec/hardware.md 3). Values are defined by this project.
const (
	MboxData   = 0x00 // RO: the next u64 of the head message
	MboxStatus = 0x08 // [15:0] messages, [16] overflow W1C
	MboxSource = 0x10 // of the head: [21:0] node, [29:24] interface, [47:32] PDID, [59:56] u64s
	MboxEmpty  = 0xdeadbeefdeadbeef

	MailboxAck      = 0  // acknowledgements, written only by the PLDMA
	MailboxRequest  = 1  // RAPF and doorbell
	MailboxRead     = 2  // read requests
	MailboxDriver   = 3  // 3..15 belong to pfd
	MailboxGSAS     = 4  // of these, the unit's, with CapsGSAS: threads' requests
	MailboxProcess  = 16 // 16 + slot belongs to a process
	MailboxThread   = 32 // 32..63 belong to threads, with CapsGSAS
	MailboxDepth    = 64
	MailboxAckDepth = 2048
)

// Window pktz, page n: four channels (messages.md 4; 000 §3.2.1). Offsets are defined by this
// project.
const (
	PktzChannels      = 4
	PktzChannelStride = 0x400
	PktzDestination   = 0x00 // u64: node[21:0], mailbox[31:24], generation[63:32]
	PktzPayload       = 0x08 // eight u64
	PktzSend          = 0x48 // write the number of u64, 1..8, in [15:0], and the sender's own number of the message in [31:16]
	PktzStatus        = 0x50 // 0 free, 1 busy, 2 refused
	PktzMaxWords      = 8

	PktzFree    = 0
	PktzBusy    = 1
	PktzRefused = 2
)

// Code is an acknowledgement's code: 0 is positive, the others are causes of a NACK (messages.md
// 2; 001 table 3.2).
type Code uint8

// The codes. CodeAck is defined by this project.
const (
	CodeAck        Code = 0
	CodeSlaveError Code = 1 // AXI slave error: page fault
	CodeDecode     Code = 2 // AXI decode error
	CodeNoContext  Code = 3
	CodeCorrupt    Code = 4
	CodeDomain     Code = 5 // protection-domain mismatch
	CodeReserved   Code = 6
	CodeBufferFull Code = 7
)
