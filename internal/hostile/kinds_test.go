package hostile

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// setting writes a kernel setting and restores its old value at the end.
func setting(t *testing.T, path, value string) {
	t.Helper()
	old, err := os.ReadFile(path)
	if err != nil {
		t.Skipf("this kernel has no %s: %v", path, err)
	}
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		t.Skipf("%s cannot be set: %v", path, err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(path, []byte(strings.Fields(strings.Trim(string(old), "[]"))[0]), 0); err != nil {
			t.Error(err)
		}
	})
}

// Any kind of a process's memory may be source and destination.
func TestMemoryKinds(t *testing.T) {
	w := start(t)
	b := w.bystander(attachOrder{})
	const size = 3<<20 + 77
	for _, c := range []struct {
		kind string
		size uint64
		skip func(t *testing.T)
	}{
		{"anonymous", size, nil},
		{"shared", size, nil},
		{"memfd", size, nil},
		{"shared file", size, nil},
		{"private file", size, nil},
		{"heap", size, nil},
		{"stack", 64<<10 - 3, nil},
		{"huge", 4 << 20, nil},
		{"mergeable", size, nil},
		{"hugetlb", 4 << 20, func(t *testing.T) {
			needRoot(t, "reserving huge pages")
			setting(t, "/proc/sys/vm/nr_hugepages", "8")
			if n, err := os.ReadFile("/proc/sys/vm/nr_hugepages"); err != nil || strings.TrimSpace(string(n)) != "8" {
				t.Skipf("the kernel gave %s huge pages of 8, %v", strings.TrimSpace(string(n)), err)
			}
		}},
	} {
		for _, method := range methods {
			t.Run(c.kind+"/"+method, func(t *testing.T) {
				w.during(t)
				if c.skip != nil {
					c.skip(t)
				}
				p := w.pair(method, "p4")
				defer p.kill()
				make := func(side *proxy, id, kind string, seed uint64) reply {
					return side.must(order{Op: "buffer", ID: id, Kind: kind, Size: c.size, Seed: seed, Path: w.dir})
				}
				// As a destination, absent, and then present.
				make(p.from, "src", "anonymous", 5)
				m := make(p.to, "dst", c.kind, 0)
				for i, seed := range []uint64{5, 6} {
					p.from.must(order{Op: "fill", ID: "src", Seed: seed})
					id := fmt.Sprint("to", i)
					p.from.write(id, "src", m.Remote, c.size)
					p.from.arrives(id)
					p.to.holds("dst", seed, 0, c.size)
				}
				// As a source: written, and absent if it can be.
				make(p.from, "kind", c.kind, 8)
				n := make(p.to, "plain", "anonymous", 0)
				p.from.write("from", "kind", n.Remote, c.size)
				p.from.arrives("from")
				p.to.holds("plain", 8, 0, c.size)
				if c.kind != "heap" && c.kind != "stack" {
					make(p.from, "empty", c.kind, 0)
					p.from.write("zeros", "empty", n.Remote, c.size)
					p.from.arrives("zeros")
					p.to.holds("plain", 0, 0, c.size)
				}
			})
		}
	}
	b.fine()
}

// Pages that KSM has merged are shared with others. A write to one faults and gets a copy, and
// the others' pages stay unchanged.
func TestMergedPages(t *testing.T) {
	needRoot(t, "KSM is started by root")
	const ksm = "/sys/kernel/mm/ksm/"
	setting(t, ksm+"pages_to_scan", "10000")
	setting(t, ksm+"sleep_millisecs", "1")
	setting(t, ksm+"smart_scan", "0")
	setting(t, ksm+"run", "1")
	w := start(t)
	b := w.bystander(attachOrder{})
	p := w.pair("gup", "p1")
	const size = 64 << 12
	m := p.to.buffer("b", "mergeable", size, 0)
	p.to.buffer("twin", "mergeable", size, 0)
	for _, id := range []string{"b", "twin"} {
		for page := uint64(0); page < size; page += 4096 {
			p.to.must(order{Op: "same", ID: id, Off: page, Size: 4096, Seed: 4})
		}
	}
	sharing := func() (n int) {
		text, err := os.ReadFile(ksm + "pages_sharing")
		if err == nil {
			_, err = fmt.Sscan(string(text), &n)
		}
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	w.until("the pages are merged", func() bool { return sharing() >= 100 })
	before := w.count(1, "faults_permission_total")
	p.from.buffer("src", "anonymous", size, 9)
	p.from.write("x", "src", m.Remote, size)
	p.from.arrives("x")
	p.to.holds("b", 9, 0, size)
	for page := uint64(0); page < size; page += 4096 {
		if r := p.to.must(order{Op: "isSame", ID: "twin", Off: page, Size: 4096, Seed: 4}); r.Wrong != 0 {
			t.Fatalf("the twin's page at %d has changed", page)
		}
	}
	w.saw(1, "faults_permission_total", before)
	b.fine()
}

// A locked page stays locked, and no other page becomes locked.
func TestNothingIsPinned(t *testing.T) { onEach(t, nothingIsPinned) }

func nothingIsPinned(t *testing.T, w *world) {
	p := w.pair("gup", "pa")
	m := p.to.buffer("b", "anonymous", 4<<20, 0)
	p.from.buffer("src", "anonymous", 4<<20, 9)
	p.from.write("x", "src", m.Remote, 4<<20)
	p.from.arrives("x")
	if s, err := w.Status(w.ctx()); err != nil || s.PinnedBytes != 0 {
		t.Errorf("%d bytes are pinned, %v", s.PinnedBytes, err)
	}
	if err := p.to.must(order{Op: "advise", ID: "b", Advice: unix.MADV_DONTNEED}).Err; err != "" {
		t.Error(err)
	}
	for i, e := range p.to.must(order{Op: "pagemap", ID: "b"}).Bits {
		if e>>63 != 0 {
			t.Fatalf("page %d is still there: something holds it", i)
		}
	}
}
