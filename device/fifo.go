package device

// FaultEntry is one entry of the page-fault FIFO: which block of which sender faulted on which
// page (spec/hardware.md 4; 000 table 3.2).
type FaultEntry struct {
	Source      NodeID        // 22 bits: the block's sender
	Transaction TransactionID // 14 bits
	Sequence    Sequence      // 14 bits
	PDID        PDID          // domain whose page it is
	Process     uint8         // 4 bits: process index in the domain
	Page        uint64        // 39 bits: VA[50:12]; the thesis's entries have 27
	Response    uint8         // 2 bits: EXA_ACK, the AXI response
}

// Values of EXA_ACK, the AXI response of the access (spec/hardware.md 4).
const (
	ResponseSlaveError = 2 // 10b: the SMMU aborted the access
	ResponseReserved   = 3
)

// Words of a FIFO entry, by their offset from the head (spec/hardware.md 4).
const (
	FIFOWordA = 0x0 // bits 127:96
	FIFOWordB = 0x4 // bits 95:64
	FIFOWordC = 0x8 // bits 63:32
	FIFOWordD = 0xc // bits 31:0; the read that covers it pops
)

// The bits of the four words (spec/hardware.md 4; 000 table 3.2).
//
//	word  field          bits     width
//	a     src_ID[21:0]   [29:8]   22
//	a     tr_ID[13:12]   [5:4]    2
//	b     tr_ID[11:0]    [31:20]  12
//	b     seq_num[13:0]  [17:4]   14
//	c     PDID[15:0]     [31:16]  16
//	c     IOVA[31:20]    [15:4]   12
//	c     EXA_ACK[1:0]   [2:1]    2
//	d     IOVA[19:0]     [31:12]  20
//	d     IOVX[10:0]     [11:1]   11
//	all   Valid          [0]      1
//
// IOVA[31:28] is the process index, IOVA[27:0] is VA[39:12]. IOVX is VA[50:40], defined by this
// project.
const (
	fifoValid = 1 << 0

	fifoASourceShift = 8
	fifoATrHighShift = 4
	fifoBTrLowShift  = 20
	fifoBSeqShift    = 4
	fifoCPDIDShift   = 16
	fifoCIOVAShift   = 4
	fifoCAckShift    = 1
	fifoDIOVAShift   = 12
	fifoDIOVXShift   = 1

	trLowBits     = 12
	trLowMask     = 1<<trLowBits - 1
	trHighMask    = 3
	iovaLowBits   = 20
	iovaLowMask   = 1<<iovaLowBits - 1
	iovaHighMask  = 1<<12 - 1
	iovaPageBits  = 28
	iovaPageMask  = 1<<iovaPageBits - 1
	iovxMask      = 1<<11 - 1
	processMask   = 0xf
	responseMask  = 3
	entryPageBits = iovaPageBits + 11
)

// Masks of the defined bits of words a, b, c and d; the others are zero.
const (
	FIFOMaskA = NodeIDMask<<fifoASourceShift | trHighMask<<fifoATrHighShift | fifoValid
	FIFOMaskB = trLowMask<<fifoBTrLowShift | SequenceMask<<fifoBSeqShift | fifoValid
	FIFOMaskC = PDIDMask<<fifoCPDIDShift | iovaHighMask<<fifoCIOVAShift | responseMask<<fifoCAckShift | fifoValid
	FIFOMaskD = iovaLowMask<<fifoDIOVAShift | iovxMask<<fifoDIOVXShift | fifoValid
)

// Words returns the entry as words a, b, c and d of the FIFO's head, all valid. Values are
// truncated to their field's width.
func (e FaultEntry) Words() [4]uint32 {
	iova := uint32(e.Process&processMask)<<iovaPageBits | uint32(e.Page&iovaPageMask)
	iovx := uint32(e.Page>>iovaPageBits) & iovxMask
	tr := uint32(e.Transaction)
	return [4]uint32{
		uint32(e.Source)&NodeIDMask<<fifoASourceShift |
			tr>>trLowBits&trHighMask<<fifoATrHighShift | fifoValid,
		tr&trLowMask<<fifoBTrLowShift |
			uint32(e.Sequence)&SequenceMask<<fifoBSeqShift | fifoValid,
		uint32(e.PDID)<<fifoCPDIDShift |
			iova>>iovaLowBits<<fifoCIOVAShift |
			uint32(e.Response)&responseMask<<fifoCAckShift | fifoValid,
		iova&iovaLowMask<<fifoDIOVAShift |
			iovx<<fifoDIOVXShift | fifoValid,
	}
}

// DecodeFaultEntry decodes the four words of the FIFO's head. It returns false if any of them
// lacks its Valid bit: the FIFO was empty, or two concurrent readers tore an entry. Undefined
// bits are ignored.
func DecodeFaultEntry(w [4]uint32) (FaultEntry, bool) {
	if w[0]&w[1]&w[2]&w[3]&fifoValid == 0 {
		return FaultEntry{}, false
	}
	iova := w[2]>>fifoCIOVAShift&iovaHighMask<<iovaLowBits | w[3]>>fifoDIOVAShift
	iovx := w[3] >> fifoDIOVXShift & iovxMask
	return FaultEntry{
		Source: NodeID(w[0] >> fifoASourceShift & NodeIDMask),
		Transaction: TransactionID(w[0]>>fifoATrHighShift&trHighMask<<trLowBits |
			w[1]>>fifoBTrLowShift),
		Sequence: Sequence(w[1] >> fifoBSeqShift & SequenceMask),
		PDID:     PDID(w[2] >> fifoCPDIDShift),
		Process:  uint8(iova >> iovaPageBits),
		Page:     uint64(iovx)<<iovaPageBits | uint64(iova&iovaPageMask),
		Response: uint8(w[2] >> fifoCAckShift & responseMask),
	}, true
}

// VA returns the address of the faulting page.
func (e FaultEntry) VA() VA { return VA(e.Page << PageShift) }

// SameFault reports whether two entries describe one fault: equal sender, transaction, sequence
// number and page. The FIFO does not push an entry that equals one of the last two pushed
// (spec/hardware.md 4, Pushing).
func (e FaultEntry) SameFault(o FaultEntry) bool {
	return e.Source == o.Source && e.Transaction == o.Transaction &&
		e.Sequence == o.Sequence && e.Page == o.Page
}
