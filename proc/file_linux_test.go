package proc

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/proc/proctest"
)

// A file's last page is there as a whole; what is mapped behind it is not.
func TestInFile(t *testing.T) {
	c := proctest.Start(t)
	p := openChild(t, c, true)
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, make([]byte, device.PageSize+1), 0o600); err != nil {
		t.Fatal(err)
	}
	file, anon := c.Map(name, 4), c.Map(proctest.Anon, 2)
	if err := p.InFile(file); errors.Is(err, ErrUnknown) {
		t.Skipf("this user may not look at map_files: %v", err)
	}
	for i, want := range []error{nil, nil, ErrPastEnd, ErrPastEnd} {
		if err := p.InFile(file + device.VA(i)*device.PageSize + 5); !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("page %d: %v, want %v", i, err, want)
		}
	}
	if err := p.InFile(anon); err != nil {
		t.Errorf("memory without a file: %v", err)
	}
	if err := os.Truncate(name, 0); err != nil {
		t.Fatal(err)
	}
	if err := p.InFile(file); !errors.Is(err, ErrPastEnd) {
		t.Errorf("truncated: %v", err)
	}
	c.Unmap(anon, 2)
	if err := p.InFile(anon); !errors.Is(err, ErrUnmapped) {
		t.Errorf("unmapped: %v", err)
	}
	c.Kill()
	if err := p.InFile(file); !errors.Is(err, ErrGone) && !errors.Is(err, ErrUnmapped) {
		t.Errorf("dead: %v", err)
	}
}
