package house

import (
	"regexp"
	"strings"
	"testing"
)

// makesFile matches what makes a file at a name, or empties it.
var makesFile = regexp.MustCompile(`os\.(Create|WriteFile)\(|os\.O_(CREATE|TRUNC)`)

// A file that a program makes where its user says is opened by package outfile: no link is
// followed, and nobody else's file is touched.
func TestFilesAreMadeInOnePlace(t *testing.T) {
	_, list := sources(t)
	for _, s := range list {
		switch {
		case s.test, s.dir == "internal/outfile", s.dir == "qemu", strings.HasPrefix(s.dir, "qemu/"), s.dir == "proc/proctest", s.dir == "tools":
			continue // qemu writes below directories of its own, mode 0700
		case s.path == "cmd/pfd/man.go", s.dir == "internal/manual":
			continue // built when the manual is
		case s.path == "daemon/listen_linux.go":
			continue // the lock, which is checked in the same way, and kept
		}
		for i, line := range strings.Split(read(t, s.path), "\n") {
			if makesFile.MatchString(line) && !strings.Contains(line, "os.O_EXCL") && !strings.Contains(line, ", 0)") {
				t.Errorf("%s:%d makes a file by itself: use internal/outfile", s.path, i+1)
			}
		}
	}
}
