package sandbox

import (
	"slices"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
)

// TestKnown: no architecture loses a system call because the library's table has another
// name for it; those that an architecture does not have are named here.
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
				t.Errorf("%s: the filter lets %s through: %v", a.name, call, has)
			}
		}
	}
}
