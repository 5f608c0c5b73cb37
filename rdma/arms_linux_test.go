package rdma

import (
	"testing"

	"github.com/exanet/pfd/attach"
)

func TestArms(t *testing.T) {
	var a arms
	for i := range attach.MaxRings {
		if n := a.take(); n != i {
			t.Fatalf("word %d, want %d", n, i)
		}
	}
	if n := a.take(); n >= 0 {
		t.Errorf("word %d of %d", n, attach.MaxRings)
	}
	a.give(700)
	if n, m := a.take(), a.take(); n != 700 || m >= 0 {
		t.Errorf("words %d and %d, want 700 alone", n, m)
	}
}
