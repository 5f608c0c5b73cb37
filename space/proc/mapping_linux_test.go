package proc

import (
	"testing"
	"unsafe"

	"github.com/exanet/pfd/device"
)

// TestQueryLayout checks struct procmap_query against include/uapi/linux/fs.h of Linux 6.11: nine
// u64, four u32, two u64.
func TestQueryLayout(t *testing.T) {
	var q procmapQuery
	for _, f := range []struct {
		name      string
		got, want uintptr
	}{
		{"size", unsafe.Offsetof(q.size), 0},
		{"query_flags", unsafe.Offsetof(q.flags), 8},
		{"query_addr", unsafe.Offsetof(q.addr), 16},
		{"vma_start", unsafe.Offsetof(q.start), 24},
		{"vma_end", unsafe.Offsetof(q.end), 32},
		{"vma_flags", unsafe.Offsetof(q.vmaFlags), 40},
		{"vma_page_size", unsafe.Offsetof(q.pageSize), 48},
		{"vma_offset", unsafe.Offsetof(q.offset), 56},
		{"inode", unsafe.Offsetof(q.inode), 64},
		{"dev_major", unsafe.Offsetof(q.devMajor), 72},
		{"dev_minor", unsafe.Offsetof(q.devMinor), 76},
		{"vma_name_size", unsafe.Offsetof(q.nameSize), 80},
		{"build_id_size", unsafe.Offsetof(q.buildIDSize), 84},
		{"vma_name_addr", unsafe.Offsetof(q.nameAddr), 88},
		{"build_id_addr", unsafe.Offsetof(q.buildIDAddr), 96},
		{"sizeof", unsafe.Sizeof(q), 104},
		{"PROCMAP_QUERY", procmapIoctl, 0xc0686611},
	} {
		if f.got != f.want {
			t.Errorf("%s: %#x, want %#x", f.name, f.got, f.want)
		}
	}
}

func TestMapsLine(t *testing.T) {
	for _, tt := range []struct {
		line string
		want Mapping
		n    int
	}{
		{"00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus-daemon\nrest",
			Mapping{Start: 0x400000, End: 0x452000, Read: true, Exec: true, File: true}, 71},
		{"7ffd0000-7ffe1000 rw-p 00000000 00:00 0                          [stack]\n",
			Mapping{Start: 0x7ffd0000, End: 0x7ffe1000, Read: true, Write: true}, 73},
		{"7f1200000000-7f1200001000 rw-s 00000000 00:01 1027 /memfd:pfd (deleted)\n",
			Mapping{Start: 0x7f1200000000, End: 0x7f1200001000, Read: true, Write: true, Shared: true, File: true}, 72},
		{"7f1200000000-7f1200001000 r--s 00003000 00:01 1027 /memfd:pfd (deleted)\n",
			Mapping{Start: 0x7f1200000000, End: 0x7f1200001000, Read: true, Shared: true, File: true, Offset: 0x3000}, 72},
		{"35b1800000-35b1820000 ---p 00000000 00:00 0 \n",
			Mapping{Start: 0x35b1800000, End: 0x35b1820000}, 45},
		{"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n",
			Mapping{Start: 0xffffffffff600000, End: 0xffffffffff601000, Exec: true}, 67},
		{"00400000-00452000 r-xp 00000000 08:02 173521 /no/newline", Mapping{}, 0},
		{"", Mapping{}, 0},
		{"\n", Mapping{}, 1},
		{"2000-1000 rw-p 00000000 00:00 0\n", Mapping{}, 32},
		{"1000-2000\n", Mapping{}, 10},
		{"1000-2000 rw-p\n", Mapping{}, 15},
		{"00000000000001000-2000 rw-p 00000000 00:00 0\n", Mapping{}, 45},
		{"1g00-2000 rw-p 00000000 00:00 0\n", Mapping{}, 32},
	} {
		if got, n := mapsLine([]byte(tt.line)); got != tt.want || n != tt.n {
			t.Errorf("%q: %+v, %d, want %+v, %d", tt.line, got, n, tt.want, tt.n)
		}
	}
}

func FuzzMapsLine(f *testing.F) {
	f.Add([]byte("00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/x\n"))
	f.Add([]byte("7f1200000000-7f1200001000 rw-s 00000000 00:01 1027 /memfd:a\n b\n"))
	f.Add([]byte("-\n"))
	f.Add([]byte("1-2 rwxs"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, n := mapsLine(b)
		if n < 0 || n > len(b) || n > 0 && b[n-1] != '\n' {
			t.Fatalf("took %d of %d bytes", n, len(b))
		}
		if m != (Mapping{}) && (n == 0 || m.Start >= m.End) {
			t.Fatalf("%+v from %d bytes", m, n)
		}
	})
}

func TestClip(t *testing.T) {
	m := Mapping{Start: 0x10000, End: 0x14000}
	for _, tt := range []struct {
		va          device.VA
		pages, want int
	}{
		{0xf000, 2, 0}, {0x10000, 1, 1}, {0x10000, 4, 4}, {0x10000, 5, 4}, {0x13fff, 64, 1}, {0x12001, 2, 2}, {0x14000, 1, 0},
	} {
		if got := m.Clip(tt.va, tt.pages); got != tt.want {
			t.Errorf("%v, %d pages: %d, want %d", tt.va, tt.pages, got, tt.want)
		}
	}
}

// TestMemo overfills a set: only the oldest page may be reported again.
func TestMemo(t *testing.T) {
	var m memo
	for i := range uint64(cowWays) {
		if !m.remember(7 + i*cowSets) {
			t.Errorf("page %d was known", i)
		}
	}
	for i := range uint64(cowWays) {
		if m.remember(7 + i*cowSets) {
			t.Errorf("page %d was not known", i)
		}
	}
	if !m.remember(7+cowWays*cowSets) || m.remember(7+cowWays*cowSets) {
		t.Error("a page that pushes another out is not remembered")
	}
	if m.used != cowWays {
		t.Errorf("%d used, want %d", m.used, cowWays)
	}
	for i := range uint64(cowWays + 1) {
		m.forget(7 + i*cowSets)
	}
	if m.used != 0 {
		t.Errorf("%d used, want 0", m.used)
	}
	// The pages of one walk never evict each other.
	for i := range uint64(MaxPages) {
		m.remember(1000 + i)
	}
	for i := range uint64(MaxPages) {
		if m.remember(1000 + i) {
			t.Errorf("page %d was pushed out", i)
		}
	}
}
