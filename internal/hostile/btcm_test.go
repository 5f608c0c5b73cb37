package hostile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/deploy"
)

// The memory that pfd shares with a device in another process cannot change its size, so neither
// side can access memory beyond its end. Punched pages read as zeros, which are empty descriptors.
func TestDeviceMemoryThatIsCut(t *testing.T) {
	needRoot(t, "opening what another process has mapped")
	w := place{deploy.Device{Name: "vfio-user", Shared: true}}.start(t)
	// A device elsewhere accesses only memory that a process has shared (Alloc).
	from := w.attach("initiator", attachOrder{Group: "cut"})
	to := w.attach("target", attachOrder{Node: 1, Group: "cut"})
	const size = 256 << 10
	n := 0
	transfers := func() {
		t.Helper()
		for range 20 {
			n++
			src, dst := fmt.Sprint("src", n), fmt.Sprint("dst", n)
			from.buffer(src, "", size, uint64(n))
			from.write(src, src, to.buffer(dst, "", size, 0).Remote, size)
			from.arrives(src)
			to.holds(dst, uint64(n), 0, size)
		}
	}
	files := mappedFiles(t, w.cmd.Process.Pid, "/memfd:exanet-btcm")
	if len(files) != 2 {
		t.Fatalf("%d files of device memory, want one of each node", len(files))
	}
	for _, f := range files {
		defer f.Close()
		for _, size := range []int64{0, device.PageSize, 1 << 30} {
			if err := unix.Ftruncate(int(f.Fd()), size); !errors.Is(err, unix.EPERM) {
				t.Errorf("%s cut to %d bytes: %v, want EPERM", f.Name(), size, err)
			}
		}
		if err := unix.Fallocate(int(f.Fd()), 0, 1<<30, device.PageSize); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s made longer: %v, want EPERM", f.Name(), err)
		}
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, unix.EPERM) {
			t.Errorf("sealing %s once more: %v, want EPERM", f.Name(), err)
		}
	}
	transfers()
	for _, f := range files {
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(device.BTCM.Size()))
		if err != nil {
			t.Error(err)
		}
	}
	transfers()
}

// mappedFiles opens the files with a given name that a process has mapped, one descriptor for
// each.
func mappedFiles(t *testing.T, pid int, name string) (list []*os.File) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/map_files", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]bool{}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if link, err := os.Readlink(path); err != nil || !strings.HasPrefix(link, name) {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		if seen[st.Ino] {
			_ = f.Close()
			continue
		}
		seen[st.Ino] = true
		list = append(list, f)
	}
	return list
}
