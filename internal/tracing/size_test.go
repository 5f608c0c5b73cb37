package tracing

import (
	"testing"

	"github.com/exanet/pfd/trace/probe"
)

// Each program is small for the verifier of any kernel: 7.2's has the least room.
func TestVerified(t *testing.T) {
	if refused != "" {
		t.Skip(refused)
	}
	sizes, err := probe.Verified()
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range sizes {
		t.Logf("%s: %d instructions verified", name, n)
		if n > 10_000 {
			t.Errorf("%s: %d instructions are verified, at most 10000", name, n)
		}
	}
}
