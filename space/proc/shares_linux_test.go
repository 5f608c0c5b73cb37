package proc

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/proc/proctest"
)

// withoutKcmp runs f on a thread whose seccomp filter refuses kcmp(2).
func withoutKcmp(t *testing.T, errno unix.Errno, f func()) {
	t.Helper()
	// linux/bpf_common.h: BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K.
	filter := []unix.SockFilter{
		{Code: 0x20}, // seccomp_data.nr
		{Code: 0x15, Jf: 1, K: unix.SYS_KCMP},
		{Code: 0x06, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		{Code: 0x06, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestKeeperWithoutKcmp opens processes where a filter refuses kcmp, as Docker's default profile
// does: an absent page proves that the keeper is the process's.
func TestKeeperWithoutKcmp(t *testing.T) {
	type tasks struct{ pidfd, keeperfd int }
	own := func(c *proctest.Child) tasks {
		p, k := c.PIDFDs()
		return tasks{p, k}
	}
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, c *proctest.Child, probe device.VA) tasks
		want    []error // one of them
	}{
		{"its own", func(_ *testing.T, c *proctest.Child, _ device.VA) tasks { return own(c) }, []error{nil}},
		{"its first thread has ended", func(t *testing.T, c *proctest.Child, _ device.VA) tasks {
			if !c.EndLeader() {
				t.Skip("the first thread of this child cannot end")
			}
			return own(c)
		}, []error{nil}},
		{"a forked child", func(t *testing.T, c *proctest.Child, _ device.VA) tasks {
			p, _ := c.PIDFDs()
			return tasks{p, proctest.PIDFD(t, c.Fork())}
		}, []error{ErrKeeper}},
		{"another process's", func(t *testing.T, c *proctest.Child, probe device.VA) tasks {
			other := proctest.Start(t)
			_ = other.MapAt(proctest.ReadOnly, probe, 1) // it may already have memory there
			p, _ := c.PIDFDs()
			_, k := other.PIDFDs()
			return tasks{p, k}
		}, []error{ErrKeeper}},
		{"of the former image", func(_ *testing.T, c *proctest.Child, _ device.VA) tasks {
			p, k := c.PIDFDs()
			c.Exec()
			return tasks{p, k}
		}, []error{ErrGone, ErrKeeper}},
		{"the page is there", func(_ *testing.T, c *proctest.Child, probe device.VA) tasks {
			c.Read(probe, 1)
			return own(c)
		}, []error{ErrUnproven}},
		{"the page is not mapped", func(_ *testing.T, c *proctest.Child, probe device.VA) tasks {
			c.Unmap(probe, 1)
			return own(c)
		}, []error{ErrUnproven}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, errno := range []unix.Errno{unix.EPERM, unix.ENOSYS} {
				c := proctest.Start(t)
				// Far from other mappings, so that it is not merged with one.
				probe := c.Map(proctest.None, 1) - 64<<30
				if err := c.MapAt(proctest.ReadOnly, probe, 1); err != nil {
					t.Fatal(err)
				}
				named := tt.prepare(t, c, probe)
				withoutKcmp(t, errno, func() {
					if p, err := Open(named.pidfd, named.keeperfd); !errors.Is(err, ErrUnproven) && !errors.Is(err, ErrGone) {
						t.Errorf("%v: without a page to look at: %v, %v", errno, p, err)
					}
					p, err := OpenProbe(named.pidfd, named.keeperfd, probe)
					if err == nil {
						err = p.Close()
					}
					if !slices.ContainsFunc(tt.want, func(want error) bool { return errors.Is(err, want) }) {
						t.Errorf("%v: %v, want one of %v", errno, err, tt.want)
					}
				})
			}
		})
	}
}
