package house

import (
	"regexp"
	"strings"
	"testing"
)

// makesFile matches calls that create or truncate a file by name.
var makesFile = regexp.MustCompile(`os\.(Create|WriteFile)\(|os\.O_(CREATE|TRUNC)`)

// Output files that a user names are opened by package outfile, which follows no link and
// refuses other users' files.
func TestFilesAreMadeInOnePlace(t *testing.T) {
	_, list := sources(t)
	for _, s := range list {
		switch {
		case s.test, s.dir == "internal/outfile", s.dir == "qemu", strings.HasPrefix(s.dir, "qemu/"), s.dir == "space/proc/proctest", s.dir == "internal/mutants":
			continue // qemu writes below its own directories, mode 0700; the others below those of tests
		case s.path == "cmd/pfd/man.go", s.dir == "internal/manual":
			continue // runs only when the manual is built
		case s.path == "daemon/listen_linux.go":
			continue // the lock file, which is checked in the same way, and kept
		}
		for i, line := range strings.Split(read(t, s.path), "\n") {
			if makesFile.MatchString(line) && !strings.Contains(line, "os.O_EXCL") && !strings.Contains(line, ", 0)") {
				t.Errorf("%s:%d creates a file directly: use internal/outfile", s.path, i+1)
			}
		}
	}
}
