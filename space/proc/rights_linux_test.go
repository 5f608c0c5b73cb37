package proc

import (
	"bytes"
	"errors"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/proc/proctest"
)

// TestMoveRights has a row for each way to forbid an access to two pages, or to the second of
// them. The kernel refuses the move, and no byte of a forbidden page changes.
func TestMoveRights(t *testing.T) {
	const pages = 2
	name := file(t, pages)
	fill := func(c *proctest.Child, va device.VA) { c.Fill(va, pages, 1) }
	forbid := func(first, prot int) func(c *proctest.Child, va device.VA) {
		return func(c *proctest.Child, va device.VA) {
			fill(c, va)
			c.Protect(va+device.VA(first*page), pages-first, prot)
		}
	}
	tests := []struct {
		name        string
		kind        string
		prepare     func(c *proctest.Child, va device.VA)
		was         byte // the byte that fills the pages
		read, write int  // pages that may be accessed
	}{
		{"writable", proctest.Anon, fill, 1, 2, 2},
		{"read-only untouched", proctest.ReadOnly, nil, 0, 2, 0},
		{"read-only", proctest.ReadOnly, func(c *proctest.Child, va device.VA) { c.Read(va, pages) }, 0, 2, 0},
		{"made read-only", proctest.Anon, forbid(0, unix.PROT_READ), 1, 2, 0},
		{"second page made read-only", proctest.Anon, forbid(1, unix.PROT_READ), 1, 2, 1},
		{"none untouched", proctest.None, nil, 0, 0, 0},
		{"made none", proctest.Anon, forbid(0, unix.PROT_NONE), 1, 0, 0},
		{"second page made none", proctest.Anon, forbid(1, unix.PROT_NONE), 1, 1, 1},
		{"another file mapped there read-only", proctest.Anon, func(c *proctest.Child, va device.VA) {
			fill(c, va)
			c.Unmap(va, pages)
			if err := c.MapAt(name, va, pages); err != nil {
				t.Error(err)
			}
			c.Protect(va, pages, unix.PROT_READ)
		}, 0, 2, 0},
		{"private file", name, forbid(0, unix.PROT_READ), 1, 2, 0},
		{"private file never written", name, func(c *proctest.Child, va device.VA) {
			c.Read(va, pages)
			c.Protect(va, pages, unix.PROT_READ)
		}, 0, 2, 0},
		{"second page of a private file", name, forbid(1, unix.PROT_READ), 1, 2, 1},
		{"private file made none", name, forbid(0, unix.PROT_NONE), 1, 0, 0},
		{"shared", proctest.Shared, forbid(0, unix.PROT_READ), 1, 2, 0},
		{"second page shared", proctest.Shared, forbid(1, unix.PROT_READ), 1, 2, 1},
		{"shared made none", proctest.Shared, forbid(0, unix.PROT_NONE), 1, 0, 0},
		{"memfd", proctest.Memfd, forbid(0, unix.PROT_READ), 1, 2, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := proctest.Start(t)
			p := openChild(t, c, true)
			guard := c.Map(proctest.None, pages+2)
			c.Unmap(guard+page, pages)
			va := guard + page
			if err := c.MapAt(tt.kind, va, pages); err != nil {
				t.Fatal(err)
			}
			if tt.prepare != nil {
				tt.prepare(c, va)
			}
			check := func(op string, n, want int, err error) {
				t.Helper()
				var e *Error
				switch {
				case n != want*page:
					t.Errorf("%s: %d bytes, want %d (%v)", op, n, want*page, err)
				case want == pages && err != nil:
					t.Errorf("%s: %v", op, err)
				case want < pages && (!errors.Is(err, ErrInaccessible) || !errors.As(err, &e) || e.VA != va+device.VA(n)):
					t.Errorf("%s: %v, want ErrInaccessible after %d bytes", op, err, n)
				}
			}
			for _, cut := range []int{0, 100, page, page + 1} {
				buf := bytes.Repeat([]byte{0xee}, pages*page)
				bufs := [][]byte{buf[:cut], buf[cut:]}
				n, err := p.ReadV(bufs, va)
				check("read", n, tt.read, err)
				if bytes.Count(buf[:n], []byte{tt.was}) != n || bytes.Count(buf[n:], []byte{0xee}) != len(buf)-n {
					t.Errorf("read: not %d of %d bytes are %#x", n, len(buf), tt.was)
				}
			}
			for _, cut := range []int{0, 100, page, page + 1} {
				buf := bytes.Repeat([]byte{0xee}, pages*page)
				n, err := p.WriteV([][]byte{buf[:cut], buf[cut:]}, va)
				check("write", n, tt.write, err)
			}
			c.Protect(va, pages, unix.PROT_READ)
			if n, want := c.Count(va, tt.write, 0xee), tt.write*page; n != want {
				t.Errorf("%d bytes written, want %d", n, want)
			}
			at, left := va+device.VA(tt.write*page), pages-tt.write
			if n := c.Count(at, left, tt.was); n != left*page {
				t.Errorf("%d of %d bytes of forbidden pages are as they were", n, left*page)
			}
		})
	}
}

// TestRightsAreJudgedByTheKernel has a process that repeatedly makes its memory read-only and
// compares it while it is written to. The kernel checks the pages of a piece (writePiece) before
// it copies them; it rarely misses a change between the two. Memory that is mapped in their place
// is never written. For comparison it also measures a lookup of the mapping followed by a write
// to /proc/PID/mem.
func TestRightsAreJudgedByTheKernel(t *testing.T) {
	const block = device.BlockSize / page
	for _, how := range []string{proctest.RaceProtect, proctest.RaceNone, proctest.RaceFile, proctest.RaceRemap} {
		t.Run(how, func(t *testing.T) {
			for _, r := range []struct{ pages, rounds int }{{block, 2000}, {MaxPages, 500}} {
				limit := 0
				if how == proctest.RaceProtect || how == proctest.RaceNone {
					// Seen: 1 in 3,000, and 1 in 15 by /proc/PID/mem; in bursts,
					// where the machine itself is stopped.
					limit = r.rounds / 50
				}
				if changed := raceWrites(t, "WriteV", how, r.pages, r.rounds); changed > limit {
					t.Errorf("by %d pages: memory that may not be written changed in %d of %d rounds, want %d at most", r.pages, changed, r.rounds, limit)
				}
			}
			raceWrites(t, "mem", how, block, 250) // for comparison
		})
	}
}

// raceWrites writes to memory, so many pages a call, while the process races with it. It returns
// in how many rounds a byte changed that must not.
func raceWrites(t *testing.T, way, how string, pages, rounds int) (changed int) {
	t.Helper()
	c := proctest.Start(t)
	p := openChild(t, c, true)
	mem := openMem(t, c.PID())
	// Far below all other mappings: while it is unmapped, the child's other threads map memory at
	// the highest free address (mmap(2)).
	va := c.Map(proctest.None, 1) - 64<<30
	if err := c.MapAt(proctest.Anon, va, MaxPages+2); err != nil {
		t.Fatal(err)
	}
	va += page // unmapped pages around it keep it a separate mapping
	c.Protect(va-page, 1, unix.PROT_NONE)
	c.Protect(va+MaxPages*page, 1, unix.PROT_NONE)
	c.Fill(va, MaxPages, 1)

	write := p.WriteV
	if way == "mem" {
		write = func(bufs [][]byte, va device.VA) (int, error) {
			if m, err := p.Mapping(va); err != nil || !m.Write {
				return 0, ErrDenied
			}
			return mem.writeV(bufs, va)
		}
	}
	var writes, refused int
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		buf := [][]byte{make([]byte, pages*page)}
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			for j := 0; j < len(buf[0]); j += 64 { // different bytes in each write
				buf[0][j] = byte(i)
			}
			writes++
			if n, err := write(buf, va+device.VA(i*pages%MaxPages*page)); err != nil && n == 0 {
				refused++
			}
		}
	})
	changed = c.Race(how, va, MaxPages, rounds)
	close(stop)
	wg.Wait()
	t.Logf("%s by %d pages: %d of %d rounds changed; %d writes, %d of them refused", way, pages, changed, rounds, writes, refused)
	if writes == refused || refused == 0 {
		t.Errorf("%d writes, %d of them refused: no race", writes, refused)
	}
	return changed
}

// A seccomp filter of the caller and the kernel's refusal of a process return different errors,
// from the probe and from Open.
func TestFiltered(t *testing.T) {
	c := proctest.Start(t)
	pidfd, keeper := c.PIDFDs()
	if err := MayMove(); err != nil {
		t.Fatalf("without a filter: %v", err)
	}
	for _, tt := range []struct {
		name  string
		call  uint32
		errno unix.Errno
	}{
		{"readv", unix.SYS_PROCESS_VM_READV, unix.EPERM},
		{"writev", unix.SYS_PROCESS_VM_WRITEV, unix.EPERM},
		{"writev by ENOSYS", unix.SYS_PROCESS_VM_WRITEV, unix.ENOSYS},
	} {
		t.Run(tt.name, func(t *testing.T) {
			refuse(t, tt.call, tt.errno)
			if err := MayMove(); !errors.Is(err, ErrFiltered) || !errors.Is(err, tt.errno) {
				t.Errorf("%v, want ErrFiltered and %v", err, tt.errno)
			}
			if p, err := Open(pidfd, keeper); !errors.Is(err, ErrFiltered) || errors.Is(err, ErrPermission) {
				t.Errorf("opened: %v, want ErrFiltered", err)
				if err == nil {
					_ = p.Close()
				}
			}
		})
	}
}

// refuse makes a system call fail on the goroutine's thread, which ends with the goroutine.
func refuse(t *testing.T, call uint32, errno unix.Errno) {
	t.Helper()
	runtime.LockOSThread()
	f := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: call},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0); err != nil {
		t.Fatal(err)
	}
}
