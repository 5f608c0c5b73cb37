package trace_test

import (
	"fmt"

	"github.com/exanet/pfd/trace"
)

// A program that shows its faults: records wait in a Log until a batch of them is shown to the
// process's tracers.
func ExampleLog() {
	var log trace.Log
	log.Add(&trace.Record{Kind: trace.Fault, Node: 1, Page: 0x7f0000001000})
	for _, r := range log.Waiting() {
		fmt.Printf("node %d, page %#x\n", r.Node, r.Page)
	}
	log.Show()
	fmt.Println(len(log.Waiting()), "wait")
	// Output:
	// node 1, page 0x7f0000001000
	// 0 wait
}
