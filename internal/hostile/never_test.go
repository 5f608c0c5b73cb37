package hostile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// A transfer to memory that cannot be paged in ends soon, with a status that says so and the
// cause in the fault log.
func TestMemoryThatNeverComes(t *testing.T) {
	for _, c := range []struct {
		kind, method string
		status       uint8
		reason       string
	}{
		{"guard", "gup", device.StatusDecode, "guard"},
		{"guard", "populate", device.StatusDecode, "guard"},
		{"guard", "touch", device.StatusDecode, "guard"},
		{"guard", "uffd", device.StatusDecode, "guard"},
		{"secret", "gup", device.StatusMemory, "did not page it in"},
		{"secret present", "gup", device.StatusDecode, "the kernel cannot access it"},
		{"empty hugetlb", "gup", device.StatusMemory, "did not page it in"},
		{"empty hugetlb", "populate", device.StatusMemory, "the process: bad address"},
		{"empty hugetlb", "touch", device.StatusMemory, "did not page it in"},
		{"path", "gup", device.StatusMemory, "did not page it in"}, // in a full file system
		{"path", "populate", device.StatusMemory, "the process: bad address"},
		{"path", "touch", device.StatusMemory, "did not page it in"},
	} {
		t.Run(c.kind+"/"+c.method, func(t *testing.T) {
			w := start(t)
			target := w.attach("target", attachOrder{Node: 1, Group: "never", Method: c.method})
			from := w.attach("initiator", attachOrder{Group: "never"})
			o := order{Op: "buffer", ID: "b", Kind: c.kind, Size: 64 << 10}
			if c.kind == "path" {
				o.Path = fullFile(t, w.dir, int64(o.Size))
			}
			m, err := target.do(o)
			if err != nil || m.Err != "" {
				t.Skip("this kernel cannot provide such memory: ", m.Err, err)
			}
			from.buffer("b", "anonymous", 64<<10, 3)
			from.write("x", "b", m.Remote, 64<<10)
			if r := from.wait("x"); r.Code != c.status {
				t.Errorf("status %d (%s), want %d", r.Code, r.Text, c.status)
			}
			faults, err := w.Faults(t.Context(), 1, 1000)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range faults {
				if f.Outcome == "failed" && strings.Contains(f.Reason, c.reason) {
					return
				}
			}
			t.Errorf("no fault failed for %q: %+v", c.reason, faults)
		})
	}
}

// fullFile returns a file without pages, in a file system that is full.
func fullFile(t *testing.T, dir string, size int64) string {
	t.Helper()
	needRoot(t, "mounting a file system")
	mount := filepath.Join(dir, "full")
	if err := os.Mkdir(mount, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("hostile", mount, "tmpfs", 0, "size=4k"); err != nil {
		t.Skip("no tmpfs can be mounted here: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(mount, "file")
	err := os.WriteFile(filepath.Join(mount, "other"), []byte{1}, 0o600)
	if err == nil {
		err = os.WriteFile(path, nil, 0o600)
	}
	if err == nil {
		err = os.Truncate(path, size)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}
