package hosts

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// The demo runs as root and as any user, and leaves nothing behind.
func TestDemo(t *testing.T) {
	prepare(t, 2, 1) // or skips the test
	for name, uid := range map[string]uint32{"root": 0, "a user": 65534} {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			c := command("exanetctl", "demo", "--hosts", "2", "--bin", bin)
			if uid != 0 {
				for _, dir := range []string{bin, filepath.Dir(tmp)} {
					if err := os.Chmod(dir, 0o755); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.Chown(tmp, int(uid), int(uid)); err != nil {
					t.Fatal(err)
				}
				c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			}
			c.Env = append(os.Environ(), "TMPDIR="+tmp)
			out, err := c.CombinedOutput()
			if err != nil && strings.Contains(string(out), "does not permit a user to make them") {
				t.Skipf("%s", out)
			}
			if err != nil || !regexp.MustCompile(`(?m)^demo: ok, [1-9][0-9]* faults resolved, 414777344 bytes verified, 0 bytes pinned$`).Match(out) ||
				!strings.Contains(string(out), "# the cable is back after ") {
				t.Errorf("%v\n%s", err, out)
			}
			if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
				t.Errorf("%v is left behind, %v", left, err)
			}
		})
	}
}
