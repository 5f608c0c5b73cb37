package accesslog_test

import (
	"fmt"
	"os"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/accesslog"
	"github.com/exanet/pfd/fault/faulttest"
)

// Each register access is a line.
func Example() {
	log := accesslog.New(os.Stdout, func() time.Duration { return 1500 * time.Nanosecond })
	bus := log.Bus(faulttest.New(), 0)
	if _, err := bus.Window(device.PL).Read32(device.PLID); err != nil {
		fmt.Println(err)
	}
	// Output: 0.000001500 node 0 r32 pl+0x00000 ID = 0x4e415845: id=0x4e415845
}
