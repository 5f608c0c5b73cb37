package device

// Sources of the register map: what its rows cite.
const (
	srcPL   = "spec/hardware.md 3, defined here"
	srcQ    = "spec/hardware.md 3, docs/spec/queues.md, defined here; after Arm IHI 0070 3.5, NVM Express Base 3.3.1"
	srcGSAS = "spec/gsas.md 4, defined here"
	srcTime = "spec/hardware.md 3; 001 §4.2"
	srcFIFO = "spec/hardware.md 4; 000 table 3.2, offsets defined here"
	srcSMMU = "spec/hardware.md 5; Arm IHI 0062"
	srcDesc = "spec/messages.md 1; 001 §2.3.3.2"
	srcBell = "spec/hardware.md 6; 001 §3.5, a word per slot defined here"
	srcPktz = "spec/messages.md 4; 000 §3.2.1, offsets defined here"
	srcMbox = "spec/hardware.md 3; 001 §3.2, offsets defined here"
)

// Masks that several registers share (spec/hardware.md 3).
const (
	allBits  = ^uint64(0)
	low32    = 1<<32 - 1
	cfgBits  = 1<<40 - 1 | PktzFormGSAS | CfgEnable
	mboxBits = PDIDMask | mboxProtection | MboxEvents | CfgEnable
	pdBits   = 1<<48 - 1 | CfgEnable
	statBits = FIFOLevelMask | FIFOOverflow | FIFOEmpty | FIFOFull
	vectors  = 1<<Vectors - 1
)

// plRegisters is window pl (spec/hardware.md 3 and 4).
func plRegisters() []Register {
	regs := []Register{
		{Name: "ID", Offset: PLID, Width: 4, Reset: IDValue, Read: low32, Source: srcPL, fields: "id[31:0]"},
		{Name: "VERSION", Offset: PLVersion, Width: 4, Reset: VersionValue, Read: low32, Source: srcPL, fields: "major[31:16] minor[15:0]"},
		{Name: "CAPS", Offset: PLCaps, Width: 8, Varies: true, Halves: true,
			Read:   CapsVABitsMask | CapsBanksMask<<CapsBanksShift | CapsDepthMask<<CapsDepthShift | CapsTXFIFO | CapsWideIOVA | CapsStall | CapsSVA | CapsQueues | CapsPeek | CapsWindows | CapsGSAS,
			Source: srcPL, fields: "va_bits[5:0] banks[10:6] fifo_depth[20:11] txfifo[24] wide_iova[25] stall[26] sva[27] queues[28] peek[29] windows[30] gsas[31]"},
		{Name: "NODE_ID", Offset: PLNodeID, Width: 4, Varies: true, Read: NodeIDMask, Write: NodeIDMask, Source: "spec/hardware.md 3; 002 III.B", fields: "node[21:0]"},
		{Name: "CTRL", Offset: PLCtrl, Width: 4, Read: CtrlEnable, Write: CtrlEnable, Act: CtrlReset, Source: srcPL, fields: "enable[0] reset[1]"},
		{Name: "IRQ_STATUS", Offset: PLIRQStatus, Width: 4, Read: vectors, W1C: vectors, Source: srcPL, fields: "fault[0] fifo[1] mailbox[2] done[3]"},
		{Name: "IRQ_MASK", Offset: PLIRQMask, Width: 4, Read: vectors, Write: vectors, Source: srcPL, fields: "fault[0] fifo[1] mailbox[2] done[3]"},
		{Name: "TIMEOUT_US", Offset: PLTimeoutUS, Width: 4, Reset: TimeoutReset, Read: low32, Write: low32, Source: srcTime, fields: "us[31:0]"},
		{Name: "GUARD_US", Offset: PLGuardUS, Width: 4, Reset: GuardReset, Read: low32, Write: low32, Source: srcPL, fields: "us[31:0]"},
		{Name: "OUTSTANDING", Offset: PLOutstanding, Width: 4, Reset: OutstandingReset, Read: low32, Write: low32, Source: "spec/hardware.md 3; 001 §3.3", fields: "blocks[31:0]"},
		{Name: "COUNTER", Offset: PLCounters, Count: int(Counters), Stride: 8, Width: 8, Varies: true, Halves: true, Read: allBits, Source: srcPL, fields: "count[63:0]"},

		{Name: "PKTZ_CFG", Offset: PLPktzCfg, Count: Interfaces, Stride: 8, Width: 8, Read: cfgBits, Write: cfgBits, Source: "spec/hardware.md 3; 003 fig. 9, offset defined here",
			fields: "pdid[15:0] node[33:16] interface[39:34] gsas[62] enable[63]"},
		{Name: "MBOX_CFG", Offset: PLMboxCfg, Count: Interfaces, Stride: 8, Width: 8, Read: mboxBits, Write: mboxBits, Cap: CapsGSAS, CapMask: mboxProtection, Source: srcPL,
			fields: "pdid[15:0] protection[39:16] events[62] enable[63]"},
		{Name: "PD_CFG", Offset: PLPDCfg, Count: Slots, Stride: 8, Width: 8, Read: pdBits, Write: pdBits, Source: srcPL, fields: "pdid[15:0] generation[47:16] enable[63]"},
		{Name: "PD_PEERS", Offset: PLPDPeers, Count: Slots * PeersPerSlot / 4, Stride: 8, Width: 8, Read: allBits, Write: allBits, Source: srcPL,
			fields: "peer0[15:0] peer1[31:16] peer2[47:32] peer3[63:48]"},
	}
	regs = append(regs, fifoRegisters("RXFIFO", PLRXFIFO, 0)...)
	regs = append(regs, fifoRegisters("TXFIFO", PLTXFIFO, CapsTXFIFO)...)
	regs = append(regs, queueRegisters("EVTQ", PLEventQueue)...)
	regs = append(regs, queueRegisters("CMDQ", PLCommandQueue)...)
	regs = append(regs, peekRegisters()...)
	regs = append(regs, windowRegisters()...)
	regs = append(regs, gsasRegisters()...)
	for i := range regs {
		regs[i].Window = PL
	}
	return regs
}

// windowRegisters are those of memory windows, present with CAPS[30].
func windowRegisters() []Register {
	const selectBits, ctrlBits = WinIndexMask | WinSlotMask<<WinSlotShift, PDIDMask | uint64(AllRights)<<WinRightsShift | CfgEnable
	regs := []Register{
		{Name: "WIN_SELECT", Offset: PLWinSelect, Width: 4, Read: selectBits, Write: selectBits, fields: "window[5:0] slot[11:8]"},
		{Name: "WIN_VA", Offset: PLWinVA, Width: 8, Read: allBits, Write: allBits, fields: "va[63:0]"},
		{Name: "WIN_BYTES", Offset: PLWinBytes, Width: 8, Read: allBits, Write: allBits, fields: "bytes[63:0]"},
		{Name: "WIN_CTRL", Offset: PLWinCtrl, Width: 8, Read: ctrlBits | WinBusy, Write: ctrlBits,
			fields: "peer[15:0] read[16] write[17] atomic[18] messages[19] busy[62] enable[63]"},
	}
	for i := range regs {
		regs[i].Source, regs[i].Cap, regs[i].CapMask = srcPL, CapsWindows, regs[i].Read
	}
	return regs
}

// gsasRegisters are those of threads and of the GSAS unit, present with CAPS[31].
func gsasRegisters() []Register {
	regs := []Register{
		{Name: "PKTZ_PROT", Offset: PLPktzProt, Count: Interfaces, Stride: 8, Width: 8, Read: protBits, Write: protBits, fields: "protection[23:0] slot[27:24]"},
		{Name: "GSAS_CTRL", Offset: PLGSASCtrl, Width: 4, Read: GSASEnable, Write: GSASEnable, fields: "enable[0]"},
		{Name: "GSAS_PAGE", Offset: PLGSASPage, Width: 8, Read: gsasRunBits, Write: gsasRunBits, fields: "first[35:0] more[51:36]"},
		{Name: "GSAS_ENTRY", Offset: PLGSASEntry, Width: 8, Read: gsasEntryBits | GSASBusy, Write: gsasEntryBits, fields: "protection[23:0] grant[30:24] busy[61] present[62] valid[63]"},
		{Name: "GSAS_BACK", Offset: PLGSASBack, Width: 8, Read: allBits &^ (PageSize - 1), Write: allBits &^ (PageSize - 1), fields: "page[63:12]"},
		{Name: "GSAS_GRANT", Offset: PLGSASGrant, Width: 8, Read: gsasGrantBits, Write: gsasGrantBits, fields: "grant[6:0] protection[30:7] read[31] write[32] valid[63]"},
		{Name: "GSAS_WANT", Offset: PLGSASWant, Width: 8, Reset: GSASNoPage, Read: allBits, fields: "page[63:0]"},
	}
	for i := range regs {
		regs[i].Source, regs[i].Cap, regs[i].CapMask = srcGSAS, CapsGSAS, regs[i].Read
	}
	return regs
}

// queueRegisters is one queue in memory at base, present with CAPS[28].
func queueRegisters(name string, base uint32) []Register {
	const index, errors = "index[15:0]", "on[0] config[4] access[5] index[6] changed[7]"
	regs := []Register{
		{Name: name + "_BASE", Offset: base + QueueBase, Width: 8, Halves: true, Read: allBits &^ (PageSize - 1), Write: allBits &^ (PageSize - 1), fields: "page[63:12]"},
		{Name: name + "_SIZE", Offset: base + QueueSize, Width: 4, Read: 0xf, Write: 0xf, fields: "log2[3:0]"},
		{Name: name + "_CTRL", Offset: base + QueueCtrl, Width: 4, Act: QueueTurnOn | QueueTurnOff, fields: "on[0] off[1]"},
		{Name: name + "_STATUS", Offset: base + QueueStatus, Width: 4, Read: QueueIsOn | QueueErrors, W1C: QueueErrors, fields: errors},
	}
	if base == PLEventQueue {
		regs = append(regs,
			Register{Name: name + "_PROD", Offset: base + QueueProd, Width: 4, Read: 0xffff, fields: index},
			Register{Name: name + "_CONS", Offset: base + QueueCons, Width: 4, Read: 0xffff, Write: 0xffff, fields: index})
	} else {
		regs = append(regs,
			Register{Name: name + "_CONS", Offset: base + QueueProd, Width: 4, Read: 0xffff, fields: index},
			Register{Name: name + "_DOORBELL", Offset: base + QueueDoorbell, Width: 4, Reset: DoorbellTakes | DoorbellMail, Read: DoorbellTakes | DoorbellMail, Act: low32 &^ (DoorbellTakes | DoorbellMail), fields: "look[28:0] mail[29] takes[30] cons[31]"})
	}
	for i := range regs {
		regs[i].Source, regs[i].Cap, regs[i].CapMask = srcQ, CapsQueues, regs[i].Read|regs[i].Act
	}
	return regs
}

// fifoRegisters is one page-fault FIFO at base, present where CAPS has c.
func fifoRegisters(name string, base uint32, c uint64) []Register {
	at := func(offset uint32) uint32 { return base + offset }
	regs := []Register{
		{Name: name + "_A", Offset: at(FIFOWordA), Width: 4, Pairs: true, Read: FIFOMaskA, Source: srcFIFO, fields: "src_id[29:8] tr_id_high[5:4] valid[0]"},
		{Name: name + "_B", Offset: at(FIFOWordB), Width: 4, Read: FIFOMaskB, Source: srcFIFO, fields: "tr_id_low[31:20] seq_num[17:4] valid[0]"},
		{Name: name + "_C", Offset: at(FIFOWordC), Width: 4, Pairs: true, Read: FIFOMaskC, Source: srcFIFO, fields: "pdid[31:16] iova_high[15:4] exa_ack[2:1] valid[0]"},
		{Name: name + "_D", Offset: at(FIFOWordD), Width: 4, Read: FIFOMaskD, Source: srcFIFO, fields: "iova_low[31:12] iovx[11:1] valid[0]"},
		{Name: name + "_STATUS", Offset: at(PLRXFIFOStatus - PLRXFIFO), Width: 4, Reset: FIFOEmpty, Read: statBits, W1C: FIFOOverflow, Source: srcPL, fields: "level[9:0] overflow[16] empty[17] full[18]"},
		{Name: name + "_EXT", Offset: at(PLRXFIFOExt - PLRXFIFO), Width: 4, Read: low32, Source: srcPL, fields: "bytes[31:0]"},
	}
	for i := range regs {
		if regs[i].Cap = c; c != 0 {
			regs[i].CapMask = low32
		}
	}
	return regs
}
