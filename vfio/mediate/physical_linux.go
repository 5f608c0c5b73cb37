package mediate

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/shadow"
)

// Bits of an entry of pagemap (Documentation/admin-guide/mm/pagemap.rst).
const (
	pagemapPresent = 1 << 63
	pagemapFrame   = 1<<55 - 1
)

// physical is shadow.Physicist for a device without an IOMMU: nothing is mapped.
type physical struct {
	pagemap *os.File // opened while this process had the right to see page frame numbers
}

// newPhysical opens the pagemap of this process.
func newPhysical() (physical, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return physical{}, fmt.Errorf("opening pagemap for physical addresses: %w", err)
	}
	return physical{f}, nil
}

func (physical) Kind() shadow.Kind { return shadow.Physical }
func (physical) Ranges() ([]shadow.Range, error) {
	return []shadow.Range{{First: 0, Last: highest - 1}}, nil
}
func (physical) MapDMA(_, _ uint64, _ int, _ uint64, _ uint32) error { return nil }
func (physical) UnmapDMA(_, _ uint64) error                          { return nil }

// Address implements shadow.Physicist.
func (p physical) Address(b []byte) (uint64, error) {
	at := addressOf(b)
	var e [8]byte
	if _, err := p.pagemap.ReadAt(e[:], int64(at>>device.PageShift*8)); err != nil {
		return 0, fmt.Errorf("physical address of memory: %w", err)
	}
	v := binary.NativeEndian.Uint64(e[:])
	switch frame := v & pagemapFrame; {
	case v&pagemapPresent == 0:
		return 0, fmt.Errorf("physical address of memory: %w: the page is not present", syscall.EFAULT)
	case frame == 0:
		return 0, fmt.Errorf("physical address of memory: %w: it needs CAP_SYS_ADMIN: run pfd as root", os.ErrPermission)
	default:
		return frame<<device.PageShift | at&(device.PageSize-1), nil
	}
}

// quiet makes a device without an IOMMU end every access (spec/hardware.md 3, CTRL), before the
// memory at its physical addresses is freed.
func (l *link) quiet(log *slog.Logger) {
	if l.fn.Kind() != shadow.Physical || l.fn.Err() != nil {
		return
	}
	if err := l.fn.Write(int(device.PL), device.PLCtrl, 4, device.CtrlReset); err != nil {
		log.Error("the device cannot be reset, and may still access memory that was this process's", "err", err)
	}
}
