package device

// srcPeek cites the description of the peek windows.
const srcPeek = "spec/hardware.md 3; docs/spec/peek.md, defined here"

// peekRegisters describes the peek windows of pl, all read-only and without side effects.
func peekRegisters() []Register {
	regs := append(peekFIFO("PEEK_RXFIFO", PLPeekRXFIFO, CapsPeek), peekFIFO("PEEK_TXFIFO", PLPeekTXFIFO, CapsPeek|CapsTXFIFO)...)
	channel := func(name string, at uint32, read uint64, fields string) {
		regs = append(regs, Register{Name: "PEEK_CHANNEL_" + name, Offset: PLPeekChannels + at, Count: Channels, Stride: PeekChannelStride,
			Width: 8, Read: read, Cap: CapsPeek, CapMask: read, fields: fields})
	}
	channel("STATE", PeekState, peekStateMask, "pdid[15:0] dst_pdid[31:16] window[42:32] class[45:44] failing[62] live[63]")
	channel("BLOCKS", PeekBlocks, peekBlocksMask, "blocks[18:0] acked[37:19] in_flight[48:38] paused[59:49]")
	channel("BYTES", PeekBytes, allBits, "issued[31:0] retransmitted[63:32]")
	channel("SEQUENCES", PeekSequences, peekSequencesMask, "oldest[13:0] newest[29:16] generation[63:32]")
	channel("AGE", PeekAge, allBits, "ns[63:0]")
	regs = append(regs, Register{Name: "WORDS", Offset: PLWords, Count: Slots, Stride: 8, Width: 8, Varies: true, Read: allBits,
		Cap: CapsPeek, CapMask: allBits, fields: "written[63:0]"})
	for i := range regs {
		regs[i].Halves, regs[i].Source = regs[i].Width == 8, srcPeek
	}
	return regs
}

// peekFIFO describes the entries of one page-fault FIFO at base, oldest first, in the format of
// the FIFO's head.
func peekFIFO(name string, base uint32, c uint64) []Register {
	regs := []Register{
		{Name: name + "_AB", Offset: base + PeekAB, Width: 8, Read: FIFOMaskA | FIFOMaskB<<32,
			fields: "valid_a[0] tr_id_high[5:4] src_id[29:8] valid_b[32] seq_num[49:36] tr_id_low[63:52]"},
		{Name: name + "_CD", Offset: base + PeekCD, Width: 8, Read: FIFOMaskC | FIFOMaskD<<32,
			fields: "valid_c[0] exa_ack[2:1] iova_high[15:4] pdid[31:16] valid_d[32] iovx[43:33] iova_low[63:44]"},
		{Name: name + "_EXT", Offset: base + PeekEXT, Width: 4, Read: low32, fields: "bytes[31:0]"},
	}
	for i := range regs {
		r := &regs[i]
		r.Count, r.Stride, r.Cap, r.CapMask = FIFODepth, PeekEntryStride, c, r.Read
	}
	return regs
}
