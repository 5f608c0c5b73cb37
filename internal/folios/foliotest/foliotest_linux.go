// Package foliotest changes, for tests, the settings that let memory come in by folios. The settings
// are the machine's: a lock makes the tests of all packages take turns.
package foliotest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// dir has the settings of huge pages (Documentation/admin-guide/mm/transhuge.rst).
const dir = "/sys/kernel/mm/transparent_hugepage"

// Set lets only folios of kib KiB come in, of shared and of private memory, and only where a process
// advises it (MADV_HUGEPAGE); 0: none. The end of the test restores the settings. If they may not be changed here, Set skips the test.
func Set(t testing.TB, kib int) {
	t.Helper()
	lock, err := os.Open(dir)
	if err != nil {
		t.Skipf("this kernel has no huge pages: %v", err)
	}
	t.Cleanup(func() { _ = lock.Close() }) // releases the lock, after the cleanups below
	for {
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		t.Fatalf("lock %s: %v", dir, err)
	}
	if _, err := os.Stat(filepath.Join(dir, folder(kib), "shmem_enabled")); kib > 0 && err != nil {
		t.Skipf("this kernel has no folios of %d KiB for shared memory (Linux 6.11): %v", kib, err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "hugepages-*kB/*enabled"))
	for _, file := range files {
		want := "never"
		if filepath.Base(filepath.Dir(file)) == folder(kib) {
			want = map[string]string{"shmem_enabled": "advise", "enabled": "madvise"}[filepath.Base(file)]
		}
		choose(t, file, want)
	}
}

// Allow also lets shared memory come in by folios of kib KiB, until the end of the test, which may
// be a subtest of the one that has called Set.
func Allow(t testing.TB, kib int) {
	t.Helper()
	choose(t, filepath.Join(dir, folder(kib), "shmem_enabled"), "advise")
}

// choose makes a setting until the end of the test.
func choose(t testing.TB, file, want string) {
	t.Helper()
	b, err := os.ReadFile(file)
	_, was, _ := strings.Cut(string(b), "[")
	was, _, ok := strings.Cut(was, "]")
	if err != nil || !ok {
		t.Fatalf("read %s: %q, %v", file, b, err)
	}
	if was == want {
		return
	}
	if err := os.WriteFile(file, []byte(want), 0); err != nil {
		t.Skipf("this user may not change which folios come in: %v", err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(file, []byte(was), 0); err != nil {
			t.Error(err)
		}
	})
}

func folder(kib int) string { return fmt.Sprintf("hugepages-%dkB", kib) }
