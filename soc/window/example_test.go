package window_test

import (
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/window"
)

// The driver opens a page of slot 2 to PDID 7 for writing.
func Example() {
	var u window.Unit
	u.Store(device.PLWinSelect, uint64(device.WinSelect(2, 0)))
	u.Store(device.PLWinVA, 0x7000)
	u.Store(device.PLWinBytes, 4096)
	u.Store(device.PLWinCtrl, device.WinCtrl(7, device.RightWrite))

	s := &u.Sets[2]
	fmt.Println(s.Admits(7, device.RightWrite, 0x7ff0, 16), s.Admits(7, device.RightWrite, 0x7ff0, 17))
	fmt.Println(s.Admits(7, device.RightRead, 0x7000, 1), s.Admits(8, device.RightWrite, 0x7000, 1))
	// Output:
	// true false
	// false false
}
