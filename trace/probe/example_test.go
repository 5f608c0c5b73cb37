//go:build linux

package probe_test

import (
	"fmt"

	"github.com/exanet/pfd/trace/probe"
)

// The stages with measured times, in order.
func ExampleStageNames() {
	fmt.Println(probe.StageNames())
	// Output: [ring send raise drain queue page_in answer resend complete seen total]
}
