package queue_test

import (
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/queue"
)

// host is a node without events.
type host struct{}

func (host) Waiting(out []device.Event) []device.Event           { return out }
func (host) Taken(*device.Event)                                 {}
func (host) Command(*device.Command) (e device.Event, told bool) { return e, false }
func (host) Busy(bank int) bool                                  { return false }

// At reset both queues are disabled, and nothing is done.
func Example() {
	m := queue.New(host{})
	notify := m.Run(func(*queue.Access) { fmt.Println("an access") })
	fmt.Println(m.Active(), m.Broken(), notify)
	// Output: false false false
}
