package device

import "strconv"

// btcmRegisters describes window btcm: memory that may be read and written in either width
// (spec/hardware.md 6).
func btcmRegisters() []Register {
	regs := []Register{
		{Name: "DESC_SRC", Offset: DescSrc, Width: 8, fields: "address[63:0]"},
		{Name: "DESC_DST", Offset: DescDst, Width: 8, fields: "address[63:0]"},
		{Name: "DESC_NOTIFY", Offset: DescNotify, Width: 8, fields: "address[63:0]"},
		{Name: "DESC_FIRST", Offset: DescFirst, Width: 8, fields: "data[63:0]"},
		{Name: "DESC_LAST", Offset: DescLast, Width: 8, fields: "data[63:0]"},
		{Name: "DESC_SIZE", Offset: DescSize, Width: 4, fields: "bytes[31:0]"},
		// 001 tables 2.2 and 3.4: write channels, then 32 read channels per page.
		{Name: "DESC_DONE", Offset: DescDone, Width: 4, Reset: uint64(DoneReset), alt: uint64(DoneReadReset), altFrom: WriteChannels, altEvery: ChannelsPerSlot, fields: "done[31:0]"},
		{Name: "DESC_RESERVED0", Offset: DescReserved0, Width: 8, fields: "node[21:0] pdid[47:32] urgent[62]"},
		{Name: "DESC_RESERVED1", Offset: DescReserved1, Width: 8, fields: "status[7:0] paused[15:8] generation[63:32]"},
	}
	for i := range regs {
		r := &regs[i]
		r.Offset += BTCMDescriptors
		r.Count, r.Stride, r.Source = Channels, DescriptorSize, srcDesc
		// Memory keeps all bits, also those that have no name.
		r.Read, r.Write = r.Bits(), r.Bits()
	}
	regs = append(regs, Register{Name: "DOORBELL", Offset: BTCMDoorbells, Count: Slots, Stride: PageSize, Width: 8,
		Act: allBits, Source: srcBell, fields: "channel_plus_1[63:0]"})
	for i := range regs {
		regs[i].Window, regs[i].Memory, regs[i].Halves = BTCM, true, regs[i].Width == 8
	}
	return regs
}

// pktzRegisters describes window pktz: 64 pages of four channels (spec/messages.md 4). Registers
// are 64 bits wide; 32-bit halves are accessible, too.
func pktzRegisters() []Register {
	const dest = NodeIDMask | 0xff<<24 | low32<<32
	regs := []Register{{Name: "DESTINATION", Offset: PktzDestination, Read: dest, Write: dest, fields: "node[21:0] mailbox[31:24] generation[63:32]"}}
	for i := range PktzMaxWords {
		regs = append(regs, Register{Name: "PAYLOAD" + strconv.Itoa(i), Offset: PktzPayload + 8*uint32(i), Read: allBits, Write: allBits, fields: "data[63:0]"})
	}
	regs = append(regs,
		Register{Name: "SEND", Offset: PktzSend, Act: allBits, fields: "words[15:0] number[31:16] zero[63:32]"},
		Register{Name: "STATUS", Offset: PktzStatus, Read: 3, fields: "status[1:0]"})
	for i := range regs {
		r := &regs[i]
		r.Window, r.Width, r.Halves, r.Source = PKTZ, 8, true, srcPktz
		r.Count, r.Stride = Interfaces*PktzChannels, PktzChannelStride
	}
	return regs
}

// mboxRegisters describes window mbox: pages 3 to 63. Pages 0 to 2 belong to the firmware and are
// holes for the driver (spec/hardware.md 3). Reading DATA consumes a u64; a 32-bit access would
// tear it and is bad.
func mboxRegisters() []Register {
	const source = NodeIDMask | 0x3f<<24 | 0xffff<<32 | 0xf<<56
	regs := []Register{
		{Name: "DATA", Offset: MboxData, Width: 8, Reset: MboxEmpty, Read: allBits, fields: "data[63:0]"},
		{Name: "STATUS", Offset: MboxStatus, Width: 8, Halves: true, Read: 0x1ffff, W1C: 1 << 16, fields: "messages[15:0] overflow[16]"},
		{Name: "SOURCE", Offset: MboxSource, Width: 8, Halves: true, Read: source, fields: "node[21:0] interface[29:24] pdid[47:32] words[59:56]"},
	}
	for i := range regs {
		r := &regs[i]
		r.Window, r.Source = MBOX, srcMbox
		r.Offset += MailboxDriver * PageSize
		r.Count, r.Stride = Interfaces-MailboxDriver, PageSize
	}
	return regs
}
