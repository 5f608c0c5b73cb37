package api

import (
	"fmt"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
)

// capNames name bits of CAPS (spec/hardware.md 3).
var capNames = [...]struct {
	bit  uint64
	name string
}{
	{device.CapsTXFIFO, "txfifo"},
	{device.CapsWideIOVA, "wide-iova"},
	{device.CapsStall, "stall"},
	{device.CapsSVA, "sva"},
	{device.CapsPeek, "peek"},
	{device.CapsWindows, "windows"},
	{device.CapsGSAS, "gsas"},
}

// readNode reads a node's control page.
func readNode(bus device.Bus, index int) (control.Node, error) {
	r := device.Reader{Bus: bus}
	version := r.Read32(device.PL, device.PLVersion)
	caps := r.Read64(device.PL, device.PLCaps)
	n := control.Node{
		Index:       index,
		ID:          r.Read32(device.PL, device.PLNodeID) & device.NodeIDMask,
		Version:     fmt.Sprintf("%d.%d", version>>16, version&0xffff),
		Caps:        control.Hex(caps),
		CapNames:    []string{},
		VABits:      int(caps & device.CapsVABitsMask),
		Banks:       int(caps >> device.CapsBanksShift & device.CapsBanksMask),
		FIFODepth:   int(caps >> device.CapsDepthShift & device.CapsDepthMask),
		Enabled:     r.Read32(device.PL, device.PLCtrl)&device.CtrlEnable != 0,
		TimeoutUS:   r.Read32(device.PL, device.PLTimeoutUS),
		GuardUS:     r.Read32(device.PL, device.PLGuardUS),
		Outstanding: r.Read32(device.PL, device.PLOutstanding),
		IRQStatus:   control.Hex(r.Read32(device.PL, device.PLIRQStatus)),
		IRQMask:     control.Hex(r.Read32(device.PL, device.PLIRQMask)),
	}
	for _, c := range capNames {
		if caps&c.bit != 0 {
			n.CapNames = append(n.CapNames, c.name)
		}
	}
	return n, r.Err
}

// fsrFlags are the bits of FSR (Arm IHI 0062, SMMU_CBn_FSR).
var fsrFlags = [...]struct {
	bit  uint32
	name string
}{
	{device.FSRTF, "TF"},
	{device.FSRAFF, "AFF"},
	{device.FSRPF, "PF"},
	{device.FSREF, "EF"},
	{device.FSRTLBMCF, "TLBMCF"},
	{device.FSRTLBLKF, "TLBLKF"},
	{device.FSRUUT, "UUT"},
	{device.FSRSS, "SS"},
	{device.FSRMULTI, "MULTI"},
}

func streamType(s2cr uint32) string {
	switch s2cr >> device.S2CRTypeShift & device.S2CRTypeMask {
	case device.S2CRTranslate:
		return "translate"
	case device.S2CRBypass:
		return "bypass"
	case device.S2CRFault:
		return "fault"
	}
	return "reserved"
}

// readBank reads context bank i and stream i, which belong together (spec/hardware.md 5).
func readBank(bus device.Bus, node, i int) (control.SMMUBank, error) {
	r := device.Reader{Bus: bus}
	bank := func(reg uint32) uint32 { return device.Bank(i, reg) }
	sctlr := r.Read32(device.SMMU, bank(device.SCTLR))
	fsr := r.Read32(device.SMMU, bank(device.FSR))
	fsynr0 := r.Read32(device.SMMU, bank(device.FSYNR0))
	smr := r.Read32(device.SMMU, device.SMR+4*uint32(i))
	b := control.SMMUBank{
		Node: node, Bank: i,
		Enabled:    sctlr&device.SCTLRM != 0,
		Stream:     streamType(r.Read32(device.SMMU, device.S2CR+4*uint32(i))),
		StreamOn:   smr&device.SMRValid != 0,
		SCTLR:      control.Hex(sctlr),
		FSR:        control.Hex(fsr),
		FSRFlags:   []string{},
		FAR:        control.Hex(r.Read64(device.SMMU, bank(device.FAR))),
		FSYNR0:     control.Hex(fsynr0),
		FSYNR1:     control.Hex(r.Read32(device.SMMU, bank(device.FSYNR1))),
		TTBR0:      control.Hex(r.Read64(device.SMMU, bank(device.TTBR0))),
		TCR:        control.Hex(r.Read32(device.SMMU, bank(device.TCR))),
		TLBSTATUS:  control.Hex(r.Read32(device.SMMU, bank(device.TLBSTATUS))),
		FaultWrite: fsynr0&device.FSYNR0WNR != 0,
	}
	if cfg := r.Read64(device.PL, device.PLPDCfg+8*uint32(i)); cfg&device.CfgEnable != 0 {
		b.PDID = uint16(cfg & device.PDIDMask)
	}
	for _, f := range fsrFlags {
		if fsr&f.bit != 0 {
			b.FSRFlags = append(b.FSRFlags, f.name)
		}
	}
	return b, r.Err
}

// readCounters reads the hardware's counters, each by one access, which is consistent
// (spec/hardware.md 2).
func readCounters(bus device.Bus) (values [device.Counters]uint64, err error) {
	r := device.Reader{Bus: bus}
	for c := range device.Counters {
		values[c] = r.Read64(device.PL, c.Offset())
	}
	return values, r.Err
}

// readRegister reads one row of the register map, with all elements of an array. It lists a
// register that a read changes, but does not read it. On the owning goroutine.
func readRegister(n *session.Node, reg *device.Register) ([]control.Register, error) {
	if n.Caps()&reg.Cap != reg.Cap && reg.Read&^reg.CapMask == 0 {
		return nil, nil // this device does not have it
	}
	r := device.Reader{Bus: n.Bus()}
	list := make([]control.Register, 0, reg.Count)
	for i := range reg.Count {
		v := control.Register{
			Node: n.Number(), Window: reg.Window.String(), Name: reg.Name,
			Offset: control.Hex(reg.At(i)), Width: reg.Width, Source: reg.Source,
			Skipped: readActs(reg),
		}
		if reg.Count > 1 {
			v.Name = fmt.Sprintf("%s[%d]", reg.Name, i)
		}
		switch {
		case v.Skipped:
		case reg.Width == 8:
			v.Value = new(control.Hex(r.Read64(reg.Window, reg.At(i))))
		default:
			v.Value = new(control.Hex(r.Read32(reg.Window, reg.At(i))))
		}
		list = append(list, v)
	}
	return list, r.Err
}

// readActs reports whether reading a register has an effect: the heads of the fault FIFOs pop
// (spec/hardware.md 4), and a mailbox's DATA takes a word (spec/hardware.md 3).
func readActs(reg *device.Register) bool {
	switch reg.Window {
	case device.PL:
		const head = device.FIFOWordD + 4 // four words
		return reg.Offset >= device.PLRXFIFO && reg.Offset < device.PLRXFIFO+head ||
			reg.Offset >= device.PLTXFIFO && reg.Offset < device.PLTXFIFO+head
	case device.MBOX:
		return reg.Offset%device.PageSize == device.MboxData
	}
	return false
}
