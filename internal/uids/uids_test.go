package uids

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/exanet/pfd/internal/golden"
)

func TestSame(t *testing.T) {
	golden.Rules(t, "../../attach/testdata/rules.txt", "same", 3, func(w []string) string {
		return golden.YesNo(Same(golden.Number(t, w[0]), golden.Number(t, w[1])))
	})
}

func TestComplete(t *testing.T) {
	for text, want := range map[string]bool{
		"         0          0 4294967295\n":                  true,
		"         0          0 1000\n 1000 1000 4294966295\n": true,
		"         0       1000          1\n":                  false,
		"":                                                    false,
		"0 0\n":                                               false,
		"0 0 many\n":                                          false,
	} {
		if got := complete([]byte(text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// In a user namespace that does not map all users the overflow uid is refused as the name of a
// user.
func TestAmbiguous(t *testing.T) {
	if os.Getenv("UIDS_TEST_CHILD") != "" {
		if !Ambiguous(Overflow) || Ambiguous(1000) || Check(Overflow) == nil || Check(1000) != nil || Own(Overflow) {
			t.Error("in a namespace without any user")
		}
		return
	}
	c := exec.CommandContext(t.Context(), "unshare", "-U", os.Args[0], "-test.run=TestAmbiguous$")
	c.Env = append(os.Environ(), "UIDS_TEST_CHILD=1")
	if out, err := c.CombinedOutput(); err != nil {
		if strings.Contains(string(out), "unshare failed") {
			t.Skipf("no user namespace can be made here: %s", out)
		}
		t.Errorf("%v: %s", err, out)
	}
}
