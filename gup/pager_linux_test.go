package gup

import (
	"bytes"
	"errors"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/proc/proctest"
)

func file(t testing.TB, pages int) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, bytes.Repeat([]byte{1}, pages*page), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestPageIn has a row for each kind of memory: the result of a page-in from its first page on,
// and of the walk after it. It pages in with a walk before, as the fault path does, and without
// one, as a prefetch would.
func TestPageIn(t *testing.T) {
	const pages = 8
	const all = 1<<pages - 1
	name, short := file(t, pages), file(t, 3)
	fill := func(c *proctest.Child, va device.VA) { c.Fill(va, pages, 1) }
	tests := []struct {
		name    string
		kind    string
		prepare func(c *proctest.Child, va device.VA)
		write   bool
		want    Result
	}{
		{"anonymous", proctest.Anon, nil, true, Result{Resident: all}},
		{"anonymous, for reading", proctest.Anon, nil, false, Result{Resident: all}},
		{"there before", proctest.Anon, fill, true, Result{Resident: all}},
		{"zero page", proctest.Anon, func(c *proctest.Child, va device.VA) { c.Read(va, pages) }, true,
			Result{Resident: all, Kind: Permission}},
		{"zero page, for reading", proctest.Anon, func(c *proctest.Child, va device.VA) { c.Read(va, pages) }, false,
			Result{Resident: all}},
		{"forked", proctest.Anon, func(c *proctest.Child, va device.VA) {
			fill(c, va)
			c.Fork()
		}, true, Result{Resident: all, Kind: Permission}},
		{"shared anonymous", proctest.Shared, nil, true, Result{Resident: all}},
		{"memfd", proctest.Memfd, nil, true, Result{Resident: all}},
		{"memfd, for reading", proctest.Memfd, nil, false, Result{Resident: all}},
		{"private file", name, nil, true, Result{Resident: all}},
		{"private file read before", name, func(c *proctest.Child, va device.VA) { c.Read(va, pages) }, true,
			Result{Resident: all, Kind: Permission}},
		{"hole at page 3", proctest.Anon, func(c *proctest.Child, va device.VA) { c.Unmap(va+3*page, 1) }, true,
			Result{Resident: 7}},
		{"read-only from page 3", proctest.Anon, func(c *proctest.Child, va device.VA) {
			fill(c, va)
			if err := c.Advise(va, pages, unix.MADV_DONTNEED); err != nil {
				t.Error(err)
			}
			c.Protect(va+3*page, 5, unix.PROT_READ)
		}, true, Result{Resident: 7}},
		{"file shorter than its mapping", short, nil, true, Result{Resident: 7}},
		{"read-only", proctest.ReadOnly, nil, true, Result{Kind: Permission, Err: ErrDenied}},
		{"read-only, for reading", proctest.ReadOnly, nil, false, Result{Resident: all}},
		{"none", proctest.None, nil, false, Result{Kind: Permission, Err: ErrDenied}},
		{"unmapped", proctest.Anon, func(c *proctest.Child, va device.VA) { c.Unmap(va, pages) }, true,
			Result{Err: ErrUnmapped}},
	}
	for _, tt := range tests {
		for _, walk := range []bool{false, true} {
			name := tt.name + map[bool]string{false: "/at once", true: "/after a walk"}[walk]
			t.Run(name, func(t *testing.T) {
				c, p, g := start(t)
				guard := c.Map(proctest.None, pages+2)
				c.Unmap(guard+page, pages)
				va := guard + page
				if err := c.MapAt(tt.kind, va, pages); err != nil {
					t.Fatal(err)
				}
				if tt.prepare != nil {
					tt.prepare(c, va)
				}
				if walk {
					if _, err := p.Walk(va, pages, tt.write); err != nil {
						t.Fatal(err)
					}
				}
				got := g.PageIn(va+7, pages, tt.write)
				if got.Resident != tt.want.Resident || got.Kind != tt.want.Kind || !errors.Is(got.Err, tt.want.Err) {
					t.Errorf("%+v, want %+v", got, tt.want)
				}
				var e *Error
				if tt.want.Err != nil && !errors.As(got.Err, &e) {
					t.Errorf("%v is no *Error", got.Err)
				}
				w, err := p.Walk(va, pages, tt.write)
				if err != nil {
					t.Fatal(err)
				}
				if ok := ^(w.Absent | w.Denied) & all; ok&tt.want.Resident != tt.want.Resident {
					t.Errorf("walk: %+v, want the pages %#x to pass", w, tt.want.Resident)
				}
			})
		}
	}
}

// TestPageInChangesNothing pages in for reads and for writes and compares every byte, also in the
// copy of a forked process.
func TestPageInChangesNothing(t *testing.T) {
	c, _, g := start(t)
	va := c.Map(proctest.Anon, MaxPages)
	c.Fill(va, MaxPages, 0xa5)
	forked := c.Fork()
	fork := open(t, forked, forked)
	for _, write := range []bool{false, true} {
		if r := g.PageIn(va, MaxPages, write); r.Resident != ^uint64(0) || r.Err != nil {
			t.Fatalf("%+v", r)
		}
		if n := c.Count(va, MaxPages, 0xa5); n != MaxPages*page {
			t.Errorf("write %v: %d bytes as they were, want %d", write, n, MaxPages*page)
		}
	}
	buf := make([]byte, MaxPages*page)
	if _, err := fork.ReadV([][]byte{buf}, va); err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(buf, []byte{0xa5}); n != len(buf) {
		t.Errorf("forked process: %d bytes as they were, want %d", n, len(buf))
	}
	// Nothing is pinned in either process.
	for name, file := range map[string]string{"child": "/proc/" + strconv.Itoa(c.PID()) + "/status", "here": "/proc/self/status"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), "VmPin:\t       0 kB") {
			t.Errorf("%s: pages are pinned", name)
		}
	}
}

// TestPageInMajor pages in a file that is not in the page cache.
func TestPageInMajor(t *testing.T) {
	// Not in tmpfs, whose only storage is the page cache.
	f, err := os.CreateTemp(".", "major-*.tmp")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.Write(make([]byte, 4*page)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	c, _, g := start(t)
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	va := c.Map(filepath.Join(wd, f.Name()), 4)
	if cached(t, f) {
		t.Skip("the file system under the sources keeps a file cached that was to be dropped")
	}
	if r := g.PageIn(va, 1, false); r.Kind != Major || r.Err != nil {
		t.Errorf("not cached: %+v, want major", r)
	}
	if !cached(t, f) {
		t.Error("not cached after the page-in")
	}
	if err := c.Advise(va, 4, unix.MADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if r := g.PageIn(va, 1, false); r.Kind != Minor || r.Err != nil {
		t.Errorf("cached: %+v, want minor", r)
	}
}

// cached reports whether the first page of f is in the page cache.
func cached(t *testing.T, f *os.File) bool {
	t.Helper()
	b, err := unix.Mmap(int(f.Fd()), 0, page, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	var vec [1]byte
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), page, uintptr(unsafe.Pointer(&vec))); errno != 0 {
		t.Fatal(errno)
	}
	return vec[0]&1 != 0
}

// TestPageInHintOutOfDate changes mappings between the walk and the page-in.
func TestPageInHintOutOfDate(t *testing.T) {
	c, p, g := start(t)
	va := c.Map(proctest.Anon, 8)
	see := func() {
		t.Helper()
		w, err := p.Walk(va, 8, true)
		if err != nil || w.Absent&1 == 0 {
			t.Fatal(w, err)
		}
	}
	see()
	c.Protect(va, 8, unix.PROT_READ)
	if r := g.PageIn(va, 8, true); !errors.Is(r.Err, ErrDenied) || r.Resident != 0 {
		t.Errorf("made read-only: %+v, want ErrDenied", r)
	}
	// The walk saw it without the right, which it now has.
	see()
	c.Protect(va, 8, unix.PROT_READ|unix.PROT_WRITE)
	if r := g.PageIn(va, 8, true); r.Err != nil || r.Resident != 0xff {
		t.Errorf("made writable: %+v", r)
	}
	if err := c.Advise(va, 8, unix.MADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	see()
	c.Unmap(va, 8)
	if r := g.PageIn(va, 8, true); !errors.Is(r.Err, ErrUnmapped) || r.Resident != 0 {
		t.Errorf("unmapped: %+v, want ErrUnmapped", r)
	}
}

// TestPageInReadOnlyPresent: a present page that has become read-only is denied, whether or not a
// walk reported it before.
func TestPageInReadOnlyPresent(t *testing.T) {
	c, p, g := start(t)
	va := c.Map(proctest.Anon, 1)
	c.Fill(va, 1, 1)
	c.Fork()
	if w, err := p.Walk(va, 1, true); err != nil || w.Denied != 1 {
		t.Fatal(w, err)
	}
	c.Fill(va, 1, 2)
	c.Protect(va, 1, unix.PROT_READ)
	for _, prot := range []int{unix.PROT_READ, unix.PROT_NONE} {
		c.Protect(va, 1, prot)
		if r := g.PageIn(va, 1, true); !errors.Is(r.Err, ErrDenied) || r.Kind != Permission || r.Resident != 0 {
			t.Errorf("%+v, want ErrDenied", r)
		}
		if w, err := p.Walk(va, 1, true); err != nil || w != (proc.Walk{}) {
			t.Errorf("walk: %+v, %v: the page is there, and its own", w, err)
		}
	}
	c.Protect(va, 1, unix.PROT_READ|unix.PROT_WRITE)
	if r := g.PageIn(va, 1, true); r.Err != nil || r.Resident != 1 {
		t.Errorf("made writable: %+v", r)
	}
}

func TestPageInBeyondFile(t *testing.T) {
	c, _, g := start(t)
	va := c.Map(file(t, 1), 2)
	if r := g.PageIn(va+page, 1, true); !errors.Is(r.Err, ErrPastEnd) || r.Resident != 0 {
		t.Errorf("%+v, want ErrPastEnd", r)
	}
}

func TestPageInGuard(t *testing.T) {

	c, _, g := start(t)
	va := c.Map(proctest.Anon, 2)
	if err := c.Advise(va, 1, madvGuardInstall); err != nil {
		t.Skip("kernel without guard pages (Linux 6.13): ", err)
	}
	if r := g.PageIn(va, 1, true); !errors.Is(r.Err, ErrUnmapped) || r.Resident != 0 {
		t.Errorf("%+v, want ErrUnmapped", r)
	}
}

func TestPageInRange(t *testing.T) {
	_, _, g := start(t)
	for _, pages := range []int{-1, 0, MaxPages + 1} {
		if r := g.PageIn(page, pages, true); !errors.Is(r.Err, proc.ErrRange) {
			t.Errorf("%d pages: %+v, want ErrRange", pages, r)
		}
	}
	for _, va := range []device.VA{0, 1 << 47, 1 << 57, ^device.VA(0)} {
		if r := g.PageIn(va, MaxPages, true); !errors.Is(r.Err, ErrUnmapped) {
			t.Errorf("%v: %+v, want ErrUnmapped", va, r)
		}
	}
}

// TestPageInGone pages in to processes that exit or execute, with a walk before it and without.
func TestPageInGone(t *testing.T) {
	for _, walk := range []bool{false, true} {
		for _, how := range []string{"exec", "kill"} {
			c, p, g := start(t)
			va := c.Map(proctest.Anon, 1)
			if walk {
				if _, err := p.Walk(va, 1, true); err != nil {
					t.Fatal(err)
				}
			}
			if how == "exec" {
				c.Exec()
			} else {
				c.Kill()
			}
			if r := g.PageIn(va, 1, true); !errors.Is(r.Err, ErrGone) || r.Resident != 0 {
				t.Errorf("%s, walked %v: %+v, want ErrGone", how, walk, r)
			}
		}
	}
}

// TestPageInCloneVM has an old address space that outlives an exec, with its keeper: pages are
// paged in there, and no byte of the new image changes.
func TestPageInCloneVM(t *testing.T) {
	c := proctest.StartCloneVM(t)
	p := open(t, c.PID, c.Helper)
	g := New(p)
	if _, err := p.Walk(c.VA+page, 1, true); err != nil {
		t.Fatal(err)
	}
	c.Exec()
	for _, kind := range []string{"absent", "there before"} {
		if r := g.PageIn(c.VA+page, 1, true); r.Err != nil || r.Resident != 1 {
			t.Errorf("%s: %+v", kind, r)
		}
	}
	buf := make([]byte, 2*page)
	if n, err := p.ReadV([][]byte{buf}, c.VA); err != nil || bytes.Count(buf, []byte{1}) != page || bytes.Count(buf, []byte{0}) != page {
		t.Errorf("old address space: %d bytes, %v, want a page of ones and one of zeros", n, err)
	}
	// The new image has not touched that page: it must be absent.
	q := open(t, c.PID, c.PID)
	if w, err := q.Walk(c.VA, 2, true); err != nil || w != (proc.Walk{Absent: 2}) {
		t.Errorf("new image: %+v, %v", w, err)
	}
	if n := c.Own(); n != page {
		t.Errorf("%d bytes of the new image are its own, want %d", n, page)
	}
}

// TestPageInKeeperEnds ends the keeper while the process goes on. A copy of the process then gets
// the keeper's pid.
func TestPageInKeeperEnds(t *testing.T) {
	for _, walk := range []bool{false, true} {
		c, p, g := start(t)
		va := c.Map(proctest.Anon, 2)
		c.Fill(va, 1, 1)
		if walk {
			if _, err := p.Walk(va, 2, true); err != nil {
				t.Fatal(err)
			}
		}
		refused := func() {
			t.Helper()
			for i := range device.VA(2) {
				if r := g.PageIn(va+i*page, 1, true); !errors.Is(r.Err, ErrGone) || r.Resident != 0 {
					t.Errorf("page %d, walked %v: %+v, want ErrGone", i, walk, r)
				}
			}
		}
		c.EndKeeper()
		refused()
		if err := c.ForkAs(c.Keeper()); err != nil {
			t.Skip("this process may not choose the number of another: ", err)
		}
		refused()
		q := open(t, c.Keeper(), c.Keeper())
		if w, err := q.Walk(va, 2, false); err != nil || w != (proc.Walk{Absent: 2}) {
			t.Errorf("the process that has the number now: %+v, %v, want its second page absent", w, err)
		}
	}
}

// TestPageInFirstThreadEnded pages in to a process whose pid is a zombie's.
func TestPageInFirstThreadEnded(t *testing.T) {
	c := proctest.Start(t)
	for !c.EndLeader() {
		c = proctest.Start(t)
	}
	g := New(open(t, c.PID(), c.Keeper()))
	va := c.Map(proctest.Anon, 8)
	for _, write := range []bool{false, true} {
		if r := g.PageIn(va, 8, write); r.Err != nil || r.Resident != 0xff {
			t.Errorf("write %v: %+v", write, r)
		}
	}
}

// TestPageInClosed pages in while the Process is closed.
func TestPageInClosed(t *testing.T) {
	c := proctest.Start(t)
	p, err := proc.Open(c.PIDFDs())
	if err != nil {
		t.Fatal(err)
	}
	g := New(p)
	va := c.Map(proctest.Anon, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			if r := g.PageIn(va, 1, true); r.Err != nil {
				if !errors.Is(r.Err, proc.ErrClosed) {
					t.Errorf("%+v, want ErrClosed", r)
				}
				return
			}
		}
	})
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

func TestPageInClips(t *testing.T) {
	c, _, g := start(t)
	va := c.Map(proctest.Anon, 8)
	c.Protect(va+5*page, 3, unix.PROT_READ)
	if r := g.PageIn(va, 8, true); bits.OnesCount64(r.Resident) != 5 || r.Err != nil {
		t.Errorf("%+v, want five pages", r)
	}
}

func BenchmarkPageIn(b *testing.B) {
	for _, bb := range []struct {
		name  string
		pages int
		walk  bool
	}{{"pages=1", 1, false}, {"pages=1/walked", 1, true}, {"pages=16/walked", 16, true}, {"pages=64/walked", 64, true}} {
		b.Run(bb.name, func(b *testing.B) {
			c, p, g := start(b)
			const region = 512 * MaxPages
			va := c.Map(proctest.Anon, region)
			next := 0
			b.ReportAllocs()
			for b.Loop() {
				if next+bb.pages > region {
					b.StopTimer()
					if err := c.Advise(va, region, unix.MADV_DONTNEED); err != nil {
						b.Fatal(err)
					}
					next = 0
					b.StartTimer()
				}
				at := va + device.VA(next*page)
				next += bb.pages
				if bb.walk {
					if _, err := p.Walk(at, bb.pages, true); err != nil {
						b.Fatal(err)
					}
				}
				if r := g.PageIn(at, bb.pages, true); r.Err != nil {
					b.Fatal(r)
				}
			}
		})
	}
}

// TestDroppedPage: if the process discards a page during its page-in, that is not a failure to
// page it in, whatever pagemap reports afterwards.
func TestDroppedPage(t *testing.T) {
	c, _, g := start(t)
	for _, kind := range []string{proctest.Anon, proctest.Shared, proctest.Memfd, file(t, 1)} {
		va := c.Map(kind, 1)
		for _, write := range []bool{false, true} {
			if err := c.Advise(va, 1, unix.MADV_DONTNEED); err != nil {
				t.Fatal(err)
			}
			// PageIn calls this if the page is absent after its call.
			if err := g.why(va, write, 0, unix.EFAULT); err != nil {
				t.Errorf("%s, write %t: %v", kind, write, err)
			}
		}
	}
	for _, write := range []bool{false, true} {
		if err := g.why(c.Map(file(t, 1), 2)+page, write, 0, unix.EFAULT); !errors.Is(err, ErrPastEnd) {
			t.Errorf("behind the end of a file: %v", err)
		}
	}
}
