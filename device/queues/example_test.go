package queues_test

import (
	"fmt"

	"github.com/exanet/pfd/device/queues"
)

// Memory of this process as the rings' memory, for a device in the same process.
func ExampleBytes() {
	b := make(queues.Bytes, queues.MemorySize)
	b.Store(8, 42)
	fmt.Println(b.Load(8), b.Load(16))
	// Output: 42 0
}
