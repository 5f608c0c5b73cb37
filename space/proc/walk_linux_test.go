package proc

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/proc/proctest"
)

// file creates a file of the given number of pages.
func file(t testing.TB, pages int) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, make([]byte, pages*page), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestWalk has a row for each kind of memory and its state, with the walk's result for a read and
// a write (spec/faultpath.md, "The walk of the SVA deployment"). TestMoveRights tests rights.
func TestWalk(t *testing.T) {
	const pages = 8
	const all = 1<<pages - 1
	name := file(t, pages)
	tests := []struct {
		name        string
		kind        string
		prepare     func(c *proctest.Child, va device.VA)
		read, write Walk
	}{
		{"anonymous untouched", proctest.Anon, nil, Walk{Absent: all}, Walk{Absent: all}},
		{"anonymous written", proctest.Anon, func(c *proctest.Child, va device.VA) {
			c.Fill(va, pages, 1)
		}, Walk{}, Walk{}},
		{"anonymous every second page", proctest.Anon, func(c *proctest.Child, va device.VA) {
			for i := 0; i < pages; i += 2 {
				c.Fill(va+device.VA(i*page), 1, 1)
			}
		}, Walk{Absent: 0xaa}, Walk{Absent: 0xaa}},
		{"zero page", proctest.Anon, func(c *proctest.Child, va device.VA) {
			c.Read(va, pages)
		}, Walk{}, Walk{Denied: all}},
		{"forked", proctest.Anon, func(c *proctest.Child, va device.VA) {
			c.Fill(va, pages, 1)
			c.Fork()
		}, Walk{}, Walk{Denied: all}},
		{"forked, one page written since", proctest.Anon, func(c *proctest.Child, va device.VA) {
			c.Fill(va, pages, 1)
			c.Fork()
			c.Fill(va+3*page, 1, 2)
		}, Walk{}, Walk{Denied: all &^ 8}},
		{"forked, child gone", proctest.Anon, func(c *proctest.Child, va device.VA) {
			c.Fill(va, pages, 1)
			c.Reap(c.Fork())
		}, Walk{}, Walk{}},
		{"shared anonymous", proctest.Shared, func(c *proctest.Child, va device.VA) {
			c.Fill(va, pages-1, 1)
		}, Walk{Absent: 0x80}, Walk{Absent: 0x80}},
		{"memfd forked", proctest.Memfd, func(c *proctest.Child, va device.VA) {
			c.Fill(va, pages, 1)
			c.Fork()
		}, Walk{}, Walk{}},
		{"private file read", name, func(c *proctest.Child, va device.VA) {
			c.Read(va, pages)
		}, Walk{}, Walk{Denied: all}},
		{"private file written", name, func(c *proctest.Child, va device.VA) {
			c.Fill(va, pages, 1)
		}, Walk{}, Walk{}},
		{"read-only", proctest.ReadOnly, func(c *proctest.Child, va device.VA) {
			c.Read(va, pages)
		}, Walk{}, Walk{Denied: all}},
		{"read-only untouched", proctest.ReadOnly, nil, Walk{Absent: all}, Walk{Absent: all}},
		{"made read-only", proctest.Anon, func(c *proctest.Child, va device.VA) {
			c.Fill(va, pages, 1)
			c.Protect(va+2*page, 2, unix.PROT_READ)
		}, Walk{}, Walk{}},
		{"shared made read-only", proctest.Shared, func(c *proctest.Child, va device.VA) {
			c.Fill(va, pages, 1)
			c.Protect(va, pages, unix.PROT_READ)
		}, Walk{}, Walk{}},
		{"private file made read-only", name, func(c *proctest.Child, va device.VA) {
			c.Read(va, pages)
			c.Protect(va, pages, unix.PROT_READ)
		}, Walk{}, Walk{Denied: all}},
		{"none", proctest.None, nil, Walk{Absent: all}, Walk{Absent: all}},
		{"none in the middle", proctest.Anon, func(c *proctest.Child, va device.VA) {
			c.Fill(va, pages, 1)
			c.Protect(va+4*page, 1, unix.PROT_NONE)
		}, Walk{}, Walk{}},
		{"shared beside zero pages", proctest.Shared, func(c *proctest.Child, va device.VA) {
			c.Unmap(va+4*page, 4)
			if err := c.MapAt(proctest.Anon, va+4*page, 4); err != nil {
				t.Error(err)
			}
			c.Read(va, pages)
		}, Walk{}, Walk{Denied: 0xf0}},
		{"unmapped", proctest.Anon, func(c *proctest.Child, va device.VA) {
			c.Fill(va, pages, 1)
			c.Unmap(va, pages)
		}, Walk{Absent: all}, Walk{Absent: all}},
		{"hole", proctest.Anon, func(c *proctest.Child, va device.VA) {
			c.Fill(va, pages, 1)
			c.Unmap(va+3*page, 2)
		}, Walk{Absent: 0x18}, Walk{Absent: 0x18}},
		{"hole at the start, read-only at the end", proctest.Anon, func(c *proctest.Child, va device.VA) {
			c.Fill(va, pages, 1)
			c.Unmap(va, 1)
			c.Protect(va+7*page, 1, unix.PROT_READ)
		}, Walk{Absent: 1}, Walk{Absent: 1}},
		{"given back", proctest.Anon, func(c *proctest.Child, va device.VA) {
			c.Fill(va, pages, 1)
			if err := c.Advise(va+page, 1, unix.MADV_DONTNEED); err != nil {
				t.Error(err)
			}
		}, Walk{Absent: 2}, Walk{Absent: 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			both(t, func(t *testing.T, query bool) {
				c := proctest.Start(t)
				// Guards on both sides keep the kernel from merging it with a neighbour or
				// filling the hole.
				guard := c.Map(proctest.None, pages+2)
				c.Unmap(guard+page, pages)
				va := guard + page
				if err := c.MapAt(tt.kind, va, pages); err != nil {
					t.Fatal(err)
				}
				if tt.prepare != nil {
					tt.prepare(c, va)
				}
				p := openChild(t, c, query)
				if got := walk(t, p, va, pages, false); got != tt.read {
					t.Errorf("read: %+v, want %+v", got, tt.read)
				}
				if got := walk(t, p, va+page-1, pages, true); got != tt.write {
					t.Errorf("write, address within the page: %+v, want %+v", got, tt.write)
				}
				for i := range pages {
					want := Walk{Absent: tt.read.Absent >> i & 1, Denied: tt.read.Denied >> i & 1}
					if got := walk(t, p, va+device.VA(i*page), 1, false); got != want {
						t.Errorf("page %d alone: %+v, want %+v", i, got, want)
					}
				}
			})
		})
	}
}

func TestWalkEndOfAddressSpace(t *testing.T) {
	both(t, func(t *testing.T, query bool) {
		c := proctest.Start(t)
		p := openChild(t, c, query)
		var last device.VA
		var err error
		// x86-64 keeps the page below 2^47 free; arm64 and others have 48, 47, 42 or 39 bits.
		for _, va := range []device.VA{1<<48 - page, 1<<47 - page, 1<<47 - 2*page, 1<<42 - page, 1<<39 - page} {
			if err = c.MapAt(proctest.Anon, va, 1); err == nil {
				last = va
				break
			}
		}
		if err != nil {
			t.Fatalf("no last page could be mapped: %v", err)
		}
		if got, want := walk(t, p, last, MaxPages, true), (Walk{Absent: ^uint64(0)}); got != want {
			t.Errorf("untouched: %+v, want %+v", got, want)
		}
		c.Fill(last, 1, 7)
		if got, want := walk(t, p, last, MaxPages, true), (Walk{Absent: ^uint64(1)}); got != want {
			t.Errorf("written: %+v, want %+v", got, want)
		}
		buf := make([]byte, 2*page)
		if n, err := p.ReadV([][]byte{buf}, last); n != page || !errors.Is(err, ErrInaccessible) {
			t.Errorf("read over the end: %d, %v, want %d, ErrInaccessible", n, err, page)
		}
		for _, va := range []device.VA{last + page, 1 << 57, 1 << 63, ^device.VA(0)} {
			if got, want := walk(t, p, va, 1, false), (Walk{Absent: 1}); got != want {
				t.Errorf("walk at %v: %+v, want %+v", va, got, want)
			}
			if n, err := p.WriteV([][]byte{buf}, va); n != 0 || !errors.Is(err, ErrInaccessible) {
				t.Errorf("write at %v: %d, %v, want ErrInaccessible", va, n, err)
			}
			if _, err := p.Mapping(va); !errors.Is(err, ErrUnmapped) {
				t.Errorf("mapping at %v: %v, want ErrUnmapped", va, err)
			}
		}
		if w := walk(t, p, ^device.VA(0), MaxPages, true); w != (Walk{Absent: ^uint64(0)}) {
			t.Errorf("walk that wraps: %+v", w)
		}
	})
}

func TestWalkRange(t *testing.T) {
	p := openChild(t, proctest.Start(t), true)
	for _, pages := range []int{-1, 0, MaxPages + 1} {
		if _, err := p.Walk(page, pages, false); !errors.Is(err, ErrRange) {
			t.Errorf("%d pages: %v, want ErrRange", pages, err)
		}
	}
}

// TestWalkCopyOnWrite follows one page through the states of the spec: reported once, passed
// while it stays shared, and reported again after it was exclusive and forked.
func TestWalkCopyOnWrite(t *testing.T) {
	both(t, func(t *testing.T, query bool) {
		c := proctest.Start(t)
		p := openChild(t, c, query)
		va := c.Map(proctest.Anon, 2)
		c.Fill(va, 2, 1)
		steps := []struct {
			name string
			do   func()
			want Walk
		}{
			{"exclusive", func() {}, Walk{}},
			{"forked", func() { c.Fork() }, Walk{Denied: 3}},
			{"reported before", func() {}, Walk{}},
			{"first page written by its owner", func() { c.Fill(va, 1, 2) }, Walk{}},
			{"forked again: only the page seen exclusive", func() { c.Fork() }, Walk{Denied: 1}},
			{"given back", func() {
				if err := c.Advise(va, 2, unix.MADV_DONTNEED); err != nil {
					t.Error(err)
				}
			}, Walk{Absent: 3}},
			{"zero page: forgotten when it was absent", func() { c.Read(va, 2) }, Walk{Denied: 3}},
			{"written", func() { c.Fill(va, 2, 3) }, Walk{}},
		}
		for _, s := range steps {
			s.do()
			if got := walk(t, p, va, 2, true); got != s.want {
				t.Fatalf("%s: %+v, want %+v", s.name, got, s.want)
			}
		}
		if !p.memo.idle.Load() {
			t.Error("something is remembered of pages that are exclusive")
		}
	})
}

func TestWalkPagedIn(t *testing.T) {
	c := proctest.Start(t)
	p := openChild(t, c, true)
	va := c.Map(proctest.Anon, 1)
	c.Fill(va, 1, 1)
	c.Fork()
	if got := walk(t, p, va, 1, true); got.Denied != 1 {
		t.Fatalf("forked: %+v", got)
	}
	// The pager has paged it in and seen it exclusive: a fork before the next walk is reported
	// again.
	c.Fill(va, 1, 2)
	var e [1]Entry
	if _, err := p.Pagemap(va, e[:]); err != nil {
		t.Fatal(err)
	}
	p.PagedIn(va, e[0])
	c.Fork()
	if got := walk(t, p, va, 1, true); got.Denied != 1 {
		t.Errorf("forked after the page-in: %+v, want it denied", got)
	}
	// Paged in and still shared: it passes although no walk reported it.
	c.Fill(va, 1, 3)
	walk(t, p, va, 1, true)
	c.Fork()
	p.PagedIn(va, entryPresent)
	if got := walk(t, p, va, 1, true); got != (Walk{}) {
		t.Errorf("still shared after the page-in: %+v, want it passed", got)
	}
}

// TestFresh passes Fresh the entry of a present page for absent pages. Only a walk of that page
// alone that follows at once uses it.
func TestFresh(t *testing.T) {
	p := openChild(t, proctest.Start(t), true)
	const va = device.VA(0x7000)
	const there = Entry(entryPresent | entryExclusive)
	for _, tt := range []struct {
		name   string
		before func()
		at     device.VA
		pages  int
		absent uint64
	}{
		{"at once", func() {}, va + 9, 1, 0},
		{"of two pages", func() {}, va, 2, 3},
		{"of another page", func() {}, va + page, 1, 1},
		{"after another", func() { walk(t, p, va+page, 1, true) }, va, 1, 1},
		{"too late", func() { p.memo.when = time.Now().Add(-freshTime) }, va, 1, 1},
	} {
		p.Fresh(va+1, there)
		p.memo.when = p.memo.when.Add(time.Hour) // however slow this machine is
		tt.before()
		if got := walk(t, p, tt.at, tt.pages, true); got.Absent != tt.absent {
			t.Errorf("%s: %+v", tt.name, got)
		}
		if got := walk(t, p, va, 1, true); got.Absent != 1 {
			t.Errorf("the walk after one %s: %+v", tt.name, got)
		}
	}
}

func TestHint(t *testing.T) {
	c := proctest.Start(t)
	p := openChild(t, c, true)
	va := c.Map(proctest.Anon, 4)
	c.Read(va+page, 1)
	if _, ok := p.Hint(va); ok {
		t.Error("a hint before any walk")
	}
	walk(t, p, va, 3, true)
	if e, ok := p.Hint(va + page + 5); !ok || !e.Present() || e.Private() {
		t.Errorf("zero page: %x, %v", uint64(e), ok)
	}
	if e, ok := p.Hint(va); !ok || e.Present() {
		t.Errorf("absent page: %x, %v", uint64(e), ok)
	}
	if _, ok := p.Hint(va); ok {
		t.Error("a hint is given twice")
	}
	if _, ok := p.Hint(va + 3*page); ok {
		t.Error("a hint for a page that no walk saw")
	}
}

func TestMapping(t *testing.T) {
	both(t, func(t *testing.T, query bool) {
		name := file(t, 4)
		c := proctest.Start(t)
		p := openChild(t, c, query)
		for _, tt := range []struct {
			kind string
			want Mapping
		}{
			{proctest.Anon, Mapping{Read: true, Write: true}},
			{proctest.ReadOnly, Mapping{Read: true}},
			{proctest.None, Mapping{}},
			{proctest.Shared, Mapping{Read: true, Write: true, Shared: true, File: true}},
			{proctest.Memfd, Mapping{Read: true, Write: true, Shared: true, File: true}},
			{name, Mapping{Read: true, Write: true, File: true}},
		} {
			guard := c.Map(proctest.None, 6)
			va := guard + page
			c.Unmap(va, 4)
			if err := c.MapAt(tt.kind, va, 4); err != nil {
				t.Fatal(err)
			}
			want := tt.want
			want.Start, want.End = va, va+4*page
			if tt.kind == proctest.None { // merged with its guards
				want.Start, want.End = guard, guard+6*page
			}
			got, err := p.Mapping(va + 3*page + 1)
			if err != nil {
				t.Fatal(err)
			}
			if tt.kind == proctest.None {
				if got.Start > want.Start || got.End < want.End {
					t.Errorf("%s: %+v, want around %+v", tt.kind, got, want)
				}
				got.Start, got.End = want.Start, want.End
			}
			if got != want {
				t.Errorf("%s: %+v, want %+v", tt.kind, got, want)
			}
			c.Unmap(va, 4)
			if tt.kind != proctest.None {
				p.text.forget()
				if m, err := p.Mapping(va); !errors.Is(err, ErrUnmapped) {
					t.Errorf("%s unmapped: %+v, %v", tt.kind, m, err)
				}
			}
		}
	})
}
