//go:build linux

package workload_test

import (
	"fmt"

	"github.com/exanet/pfd/internal/workload"
)

// Check validates a request before any process starts.
func ExampleRequest_Check() {
	q := workload.Request{Options: workload.Options{From: 0, To: 1}, Count: 200, Size: 4096, Src: workload.Present, Dst: workload.Absent, Waiting: workload.Poll}
	fmt.Println(q.Check())
	q.Count = 0
	fmt.Println(q.Check() != nil)
	// Output:
	// <nil>
	// true
}
