package soc_test

import (
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
)

// caps are the emulated SoC's: 48-bit VA, 16 banks, depth 512, TXFIFO, wide IOVA, SVA; stall off.
const caps = 48 | 16<<device.CapsBanksShift | 512<<device.CapsDepthShift |
	device.CapsTXFIFO | device.CapsWideIOVA | device.CapsSVA | device.CapsPeek

func TestModelConforms(t *testing.T) {
	for name, c := range map[string]uint64{
		"emulated SoC": caps, "papers' hardware": 39 | 16<<6 | 512<<11 | device.CapsStall,
	} {
		t.Run(name, func(t *testing.T) { conformance(t, newModel(c).Window) })
	}
}

// broken is a model with one defect in one window.
type broken struct {
	device.Window
	read32  func(offset, v uint32) uint32
	read64  func(offset uint32, v uint64) uint64
	write32 func(offset uint32) bool // true: the write is lost
}

func (b broken) Load(offset uint32, width int) (uint64, error) {
	v, err := b.Window.Load(offset, width)
	switch {
	case width == 4 && b.read32 != nil:
		v = uint64(b.read32(offset, uint32(v)))
	case width == 8 && b.read64 != nil:
		v = b.read64(offset, v)
	}
	return v, err
}

func (b broken) Store(offset uint32, width int, v uint64) error {
	if width == 4 && b.write32 != nil && b.write32(offset) {
		return nil
	}
	return b.Window.Store(offset, width, v)
}

// TestCheckFindsDefects checks that each property is verified: a device that lacks it is detected
// by the right check at the right register.
func TestCheckFindsDefects(t *testing.T) {
	tests := []struct {
		name   string
		window device.WindowID
		defect broken
		kind   checkKind
		at     string
	}{
		{"reset value", device.PL, broken{read32: func(o, v uint32) uint32 {
			if o == device.PLGuardUS && v == device.GuardReset {
				return v + 1
			}
			return v
		}}, atReset, "pl/GUARD_US"},
		{"undefined bit reads 1", device.SMMU, broken{read32: func(o, v uint32) uint32 {
			if o == device.Bank(3, device.SCTLR) {
				return v | 1<<9
			}
			return v
		}}, masks, "smmu/CB_SCTLR"},
		{"a write is lost", device.PL, broken{write32: func(o uint32) bool { return o == device.PLIRQMask }}, masks, "pl/IRQ_MASK"},
		{"an array aliases", device.SMMU, broken{read32: func(o, v uint32) uint32 {
			if o == device.S2CR+4*15 {
				return 0
			}
			return v
		}}, atReset, "smmu/S2CR"},
		{"half of DATA is read", device.MBOX, broken{read32: func(o, v uint32) uint32 {
			if o == device.MailboxDriver*device.PageSize {
				return 0xbeefdead
			}
			return v
		}}, widths, "mbox/DATA"},
		{"64-bit read of ID", device.PL, broken{read64: func(o uint32, v uint64) uint64 {
			if o == device.PLID {
				return device.IDValue
			}
			return v
		}}, widths, "pl/ID"},
		{"unaligned read answers", device.PL, broken{read32: func(o, v uint32) uint32 {
			if o == device.PLTimeoutUS+2 {
				return 1
			}
			return v
		}}, unaligned, "pl/TIMEOUT_US"},
		{"a hole answers", device.PL, broken{read32: func(o, v uint32) uint32 {
			if o == 0xfffc {
				return 0xffffffff
			}
			return v
		}}, hole, "pl"},
		{"a hole's write is not counted", device.MBOX, broken{write32: func(o uint32) bool { return o == 0x0 }}, hole, "mbox"},
		{"FSR is not W1C", device.SMMU, broken{write32: func(o uint32) bool { return o == device.Bank(15, device.FSR) }}, clearOne, "smmu/CB_FSR"},
		{"a cleared cause is lost", device.PL, broken{read32: func(o, v uint32) uint32 {
			if o == device.PLIRQStatus {
				return 0
			}
			return v
		}}, cause, "pl/IRQ_STATUS"},
		{"CTRL.reset does nothing", device.PL, broken{write32: func(o uint32) bool { return o == device.PLCtrl }}, ctrlReset, "pl/PD_CFG"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newModel(caps)
			findings, _ := check(func(w device.WindowID) device.Window {
				if w != tt.window {
					return m.Window(w)
				}
				tt.defect.Window = m.Window(w)
				return device.Window{Access: tt.defect}
			})
			for _, f := range findings {
				if f.Kind == tt.kind && f.Register == tt.at {
					return
				}
			}
			t.Errorf("no %s finding at %s; found %v", tt.kind, tt.at, findings)
		})
	}
}

func TestFindingString(t *testing.T) {
	if s := (finding{atReset, "pl/ID", "0x0, want 0x1"}).String(); !strings.Contains(s, "pl/ID: reset: 0x0, want 0x1") {
		t.Error(s)
	}
}
