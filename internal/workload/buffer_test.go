package workload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func mustBuffer(t *testing.T, p prepare) *buffer {
	t.Helper()
	b, err := newBuffer(p, nil)
	if errors.Is(err, ErrSkipped) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("newBuffer(%+v): %v", p, err)
	}
	t.Cleanup(func() {
		if err := b.close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

func mustPagemap(t *testing.T) *pagemap {
	t.Helper()
	p, err := openPagemap()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func mustCheck(t *testing.T, b *buffer, want verify, pages *pagemap) verdict {
	t.Helper()
	v, err := b.check(want, pages)
	if err != nil {
		t.Fatalf("check: %v", err)
	}
	return v
}

var geometries = []struct{ size, offset uint64 }{
	{1, 0}, {15, 1}, {16, 4095}, {4095, 0}, {4096, 0}, {4097, 0}, {4096, 4095},
	{16383, 3}, {16384, 0}, {16385, 0}, {65536, 100}, {1 << 20, 16383},
}

// The kernel's view of each buffer matches its state.
func TestStatesAgainstPagemap(t *testing.T) {
	pages := mustPagemap(t)
	for _, g := range geometries {
		for _, state := range states {
			t.Run(fmt.Sprintf("%s/%d+%d", state, g.size, g.offset), func(t *testing.T) {
				b := mustBuffer(t, prepare{State: state, Size: g.size, Offset: g.offset, Seed: 7})
				if got := uint64(b.addr()) % blockSize; got != g.offset%blockSize {
					t.Errorf("data at %v: %d after a 16 KiB boundary, want %d", b.addr(), got, g.offset%blockSize)
				}
				if state == Unmapped {
					// mincore fails on unmapped addresses.
					page := uintptr(b.addr()) / pageSize * pageSize
					var there byte
					_, _, errno := unix.Syscall(unix.SYS_MINCORE, page, pageSize, uintptr(unsafe.Pointer(&there)))
					if errno != unix.ENOMEM {
						t.Errorf("mincore of the hole: %v, want %v", errno, unix.ENOMEM)
					}
					return
				}
				resident, total, err := b.resident(pages)
				if err != nil {
					t.Fatal(err)
				}
				from := int(b.data / pageSize)
				want := 0
				for i := from; i < from+total; i++ {
					if state.written(i) {
						want++
					}
				}
				if resident != want {
					t.Errorf("%d of %d pages are there, want %d", resident, total, want)
				}
			})
		}
	}
}

// A buffer that was not written passes the check for an untouched buffer, and no other.
func TestCheckUntouched(t *testing.T) {
	pages := mustPagemap(t)
	for _, state := range states {
		t.Run(string(state), func(t *testing.T) {
			b := mustBuffer(t, prepare{State: state, Size: 5000, Offset: 3, Seed: 7})
			if v := mustCheck(t, b, verify{}, pages); !v.ok() {
				t.Errorf("untouched: %v", v)
			}
			if state == Unmapped {
				return
			}
			v := mustCheck(t, b, verify{Arrived: true, Source: content{Present, 8}, SourceData: b.data}, pages)
			if v.Wrong == 0 {
				t.Error("passes as written, although nothing was")
			}
		})
	}
}

// put writes through the mapping what a transfer writes whose source has the layout of b.
func put(b *buffer, source content, from, to uint64) { putShifted(b, source, b.data, from, to) }

// putShifted is like put, but the source's data begin at sourceData of its area.
func putShifted(b *buffer, source content, sourceData, from, to uint64) {
	for i := from; i < to; i++ {
		pos := i - b.data + sourceData
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], source.word(pos/8))
		b.area[i] = w[pos%8]
	}
}

func TestCheckArrived(t *testing.T) {
	pages := mustPagemap(t)
	for _, g := range geometries {
		for _, state := range []State{Absent, Present, Alternate, COW} {
			for _, from := range []State{Present, Absent, Alternate} {
				t.Run(fmt.Sprintf("%s from %s/%d+%d", state, from, g.size, g.offset), func(t *testing.T) {
					b := mustBuffer(t, prepare{State: state, Size: g.size, Offset: g.offset, Seed: 7})
					source := content{from, 8}
					put(b, source, b.data, b.data+g.size)
					if v := mustCheck(t, b, verify{Arrived: true, Source: source, SourceData: b.data}, pages); !v.ok() {
						t.Errorf("all written: %v", v)
					}
				})
			}
		}
	}
}

// The two buffers may have different alignments.
func TestCheckShifted(t *testing.T) {
	pages := mustPagemap(t)
	const size = 9000
	for _, offset := range []uint64{0, 1, 7, 8, 4095} {
		for _, sourceOffset := range []uint64{0, 1, 3, 8, 4089, 16383} {
			b := mustBuffer(t, prepare{State: Present, Size: size, Offset: offset, Seed: 7})
			source := prepare{State: Alternate, Size: size, Offset: sourceOffset, Seed: 8}
			putShifted(b, source.content(), source.data(), b.data, b.data+size)
			want := verify{Arrived: true, Source: source.content(), SourceData: source.data()}
			if v := mustCheck(t, b, want, pages); !v.ok() {
				t.Errorf("%d from %d: %v", offset, sourceOffset, v)
			}
			b.area[b.data+size-1]++
			if v := mustCheck(t, b, want, pages); v.Wrong != 1 || v.First != size-1 {
				t.Errorf("%d from %d, last byte wrong: %v", offset, sourceOffset, v)
			}
		}
	}
}

// The check finds one wrong byte at any place.
func TestCheckFindsOneByte(t *testing.T) {
	pages := mustPagemap(t)
	const size, offset = 4099, 5
	for _, state := range []State{Absent, Present} {
		for _, at := range []int64{-offset - guardSize, -1, 0, 1, 7, 8, 2048, size - 1, size, size + 1, 2*pageSize - offset + guardSize - 1} {
			t.Run(fmt.Sprintf("%s/%d", state, at), func(t *testing.T) {
				b := mustBuffer(t, prepare{State: state, Size: size, Offset: offset, Seed: 7})
				source := content{Present, 8}
				put(b, source, b.data, b.data+size)
				b.area[int64(b.data)+at] ^= 0x10
				v := mustCheck(t, b, verify{Arrived: true, Source: source, SourceData: b.data}, pages)
				if v.Wrong != 1 || v.First != at {
					t.Errorf("%d wrong, first at %d; want 1 at %d", v.Wrong, v.First, at)
				}
			})
		}
	}
}

// A transfer that failed in flight may leave old and new bytes, and no others.
func TestCheckPartial(t *testing.T) {
	pages := mustPagemap(t)
	const size, offset = 20000, 9
	b := mustBuffer(t, prepare{State: Present, Size: size, Offset: offset, Seed: 7})
	source := content{Present, 8}
	put(b, source, b.data+100, b.data+10001)
	want := verify{Partial: true, Source: source, SourceData: b.data}
	if v := mustCheck(t, b, want, pages); !v.ok() {
		t.Errorf("half written: %v", v)
	}
	if v := mustCheck(t, b, verify{}, pages); v.Wrong == 0 {
		t.Error("half written passes as untouched")
	}
	old, arrived := b.area[b.data+50], byte(source.word((b.data+50)/8)>>(8*((b.data+50)%8)))
	for x := range 256 {
		if byte(x) != old && byte(x) != arrived {
			b.area[b.data+50] = byte(x)
			break
		}
	}
	if v := mustCheck(t, b, want, pages); v.Wrong != 1 || v.First != 50 {
		t.Errorf("a foreign byte: %v, want one at 50", v)
	}
}

// The check finds an absent page under a transfer that is reported as arrived, even if
// zeros were sent.
func TestCheckFindsAbsentPage(t *testing.T) {
	pages := mustPagemap(t)
	b := mustBuffer(t, prepare{State: Absent, Size: 3 * pageSize, Seed: 7})
	put(b, content{Absent, 8}, b.data, b.data+pageSize)
	v := mustCheck(t, b, verify{Arrived: true, Source: content{Absent, 8}, SourceData: b.data}, pages)
	if v.Wrong != 0 || v.Missing != 2 || v.Resident != 1 || v.ok() {
		t.Errorf("got %+v, want 2 pages missing", v)
	}
}

// The child keeps its bytes while the parent's change, and reports if its own change, as
// they would only in shared memory.
func TestForkedChild(t *testing.T) {
	pages := mustPagemap(t)
	b := mustBuffer(t, prepare{State: COW, Size: 10000, Offset: 1, Seed: 7})
	put(b, content{Present, 8}, b.data, b.data+10000)
	for range 3 {
		v := mustCheck(t, b, verify{Arrived: true, Source: content{Present, 8}, SourceData: b.data}, pages)
		if !v.ok() {
			t.Fatalf("got %v", v)
		}
	}

	area, err := unix.Mmap(-1, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(area); err != nil {
			t.Error(err)
		}
	}()
	fill(area, 7, 0)
	c, err := fork(area, 7)
	if err != nil {
		t.Fatal(err)
	}
	pid := c.process.Pid
	if kept, err := c.check(); err != nil || !kept {
		t.Errorf("before: kept %v, %v", kept, err)
	}
	area[4095]++
	if kept, err := c.check(); err != nil || kept {
		t.Errorf("after a shared byte changed: kept %v, %v", kept, err)
	}
	if err := c.close(); err != nil {
		t.Error(err)
	}
	if err := unix.Kill(pid, 0); err != unix.ESRCH {
		t.Errorf("child %d after close: %v, want it gone", pid, err)
	}
}

// Pages that the forked child shares are copy-on-write for the kernel: not exclusive
// (bit 56) in the parent.
func TestCOWIsShared(t *testing.T) {
	pages := mustPagemap(t)
	b := mustBuffer(t, prepare{State: COW, Size: pageSize, Seed: 7})
	var entry [8]byte
	if _, err := pages.file.ReadAt(entry[:], int64(uint64(b.addr())/pageSize*8)); err != nil {
		t.Fatal(err)
	}
	if binary.NativeEndian.Uint64(entry[:])>>56&1 != 0 {
		t.Error("page is the parent's alone")
	}
}

func TestCloseTwice(t *testing.T) {
	for _, state := range states {
		b, err := newBuffer(prepare{State: state, Size: 100, Seed: 7}, nil)
		if errors.Is(err, ErrSkipped) {
			t.Logf("%s: %v", state, err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := b.close(); err != nil {
				t.Errorf("%s: %v", state, err)
			}
		}
	}
}
