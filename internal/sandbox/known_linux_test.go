package sandbox

import (
	"slices"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
)

// TestKnown: no system call is lost because the library's table for an architecture has another
// name for it. The calls that an architecture does not have are listed here.
func TestKnown(t *testing.T) {
	for _, a := range []struct {
		name    string
		missing []string
	}{
		{"x86_64", nil},
		{"aarch64", []string{"arch_prctl", "poll"}},
	} {
		info, err := arch.GetInfo(a.name)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range Runtime() {
			has := len(known(info, []string{call})) == 1
			if has == slices.Contains(a.missing, call) {
				t.Errorf("%s: the filter permits %s: %v", a.name, call, has)
			}
		}
	}
}
