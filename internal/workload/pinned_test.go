package workload

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/maybe"
)

// pinned_bytes includes the memory that any of the three processes has locked at a transfer,
// from /proc.
func TestPinnedIsMeasured(t *testing.T) {
	const pages = 3
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Cur < 16*pages*pageSize {
		t.Skipf("this user may lock %d bytes only (ulimit -l)", limit.Cur)
	}
	for _, c := range []struct {
		name, how string
		daemon    bool
		want      int64
	}{
		{"nobody", "ok", false, 0},
		{"initiator", fmt.Sprintf("lock %d", 0x100), false, pages * pageSize},
		{"target", fmt.Sprintf("lock %d", 0x101), false, pages * pageSize},
		{"daemon", "ok", true, pages * pageSize},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.daemon { // which is this process: see fakeDaemon
				b, err := lock(pages)
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := unix.Munmap(b); err != nil {
						t.Error(err)
					}
				}()
			}
			r, err := Run(t.Context(), &fakeDaemon{}, fakeRequest(t, c.how))
			if err != nil || !r.OK() {
				t.Fatalf("%+v %s, %v", r, deref(r.Error), err)
			}
			if r.PinnedBytes != maybe.Number(c.want) {
				t.Errorf("%v bytes pinned, want %d", r.PinnedBytes, c.want)
			}
		})
	}
}

// lock locks memory until it is unmapped.
func lock(pages int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, pages*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	if err := unix.Mlock(b); err != nil {
		_ = unix.Munmap(b)
		return nil, fmt.Errorf("mlock: %w", err)
	}
	return b, nil
}
