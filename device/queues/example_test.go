package queues_test

import (
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/queues"
	"github.com/exanet/pfd/fault/faulttest"
)

// Until Start the queues are disabled: an invalidation must use the registers.
func ExampleQueues() {
	q := queues.New(queues.Config{
		Window: func(device.WindowID) device.Window { return device.Window{} }, // the device's own
		Memory: make(faulttest.Bytes, queues.MemorySize), Addr: 1 << 32,
	})
	_, ok := q.Invalidate(3, 0x7f0000001, 1)
	fmt.Println(q.On(), ok)
	// Output: false false
}
