package user

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPageMaps maps 1 GiB of a guest's memory page by page, as QEMU does for a guest's IOMMU,
// uses it, and unmaps it in large ranges. The order of the pages in the file differs from that in
// the address space, or is the same.
func TestPageMaps(t *testing.T) {
	if testing.Short() {
		t.Skip("short: 262,144 mappings one by one take some seconds")
	}
	const pages = 1 << 30 >> 12
	for _, x := range []struct {
		name   string
		factor uint64
		maps   int // entries of the server
	}{{"scattered", 0x9e3779b1, pages}, {"in order", 1, 1}} {
		t.Run(x.name, func(t *testing.T) {
			s, _, c := setUp(t, Options{})
			fd := memfd(t, 1<<30, 0)
			before := openFDs(t)
			place := func(page uint64) uint64 { return page * x.factor % pages << 12 }
			for chunk := uint64(1) << 63; chunk > 1<<30; chunk >>= 1 { // as when a domain is attached
				ok(t, c.UnmapDMA(chunk, chunk))
			}
			const base = 4 << 30
			for p := range uint64(pages) {
				if p%8 == 0 { // QEMU waits for each: the rest is for speed
					ok(t, c.MapDMA(base+p<<12, 4096, fd, place(p), both))
				} else {
					ok(t, c.PostMapDMA(base+p<<12, 4096, fd, place(p), both))
				}
			}
			ok(t, c.Flush())
			if m, f := s.DMA().Mappings(); m != x.maps || f != 1 {
				t.Errorf("%d mappings of %d files, want %d of 1", m, f, x.maps)
			}
			if after := fdsAfter(t, before+1); after != before+1 { // one a file
				t.Errorf("%d descriptors before, %d after", before, after)
			}
			page := make([]byte, 8192)
			for p := uint64(0); p < pages-1; p += 509 {
				want := fmt.Appendf(nil, "page %d", p)
				ok(t, s.DMA().Write(base+p<<12+4090, want)) // over the end of one
				got := make([]byte, len(want))
				ok(t, s.DMA().Read(base+p<<12+4090, got))
				_, err := unix.Pread(fd, page[:4096], int64(place(p)))
				ok(t, err)
				_, err = unix.Pread(fd, page[4096:], int64(place(p+1)))
				ok(t, err)
				if !bytes.Equal(got, want) || !bytes.HasPrefix(page[4090:], want) {
					t.Fatalf("page %d: %q, in the file %q", p, got, page[4090:4090+len(want)])
				}
			}
			for p := uint64(0); p < pages; p += pages / 8 { // where each eighth begins: one page alone
				ok(t, c.UnmapDMA(base+p<<12, 4096))
				if err := s.DMA().Read(base+p<<12, page[:8]); !errors.Is(err, ErrUnmapped) {
					t.Errorf("page %d: %v", p, err)
				}
				ok(t, s.DMA().Read(base+(p+1)<<12, page[:8]))
			}
			ok(t, c.UnmapDMA(0, 1<<63))
			if m, f := s.DMA().Mappings(); m != 0 || f != 0 {
				t.Errorf("%d mappings of %d files left", m, f)
			}
			if st := s.Stats(); st.MapsRefused != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// TestMapsBound: four million mappings fit the documented number of bytes, and one more is
// refused.
func TestMapsBound(t *testing.T) {
	if testing.Short() {
		t.Skip("short: four million mappings take some seconds")
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	s := newSpace(serverMaxMaps)
	add := func(i uint64) error { return s.add(DMAMap{32, both, 0, i << 12, 4096}, -1) }
	for i := range uint64(serverMaxMaps) {
		ok(t, add(i))
	}
	if err := add(serverMaxMaps); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	if used := int64(heap() - before); used > 256<<20 {
		t.Errorf("%d bytes for %d mappings", used, s.table.n)
	} else {
		t.Logf("%d MiB for %d mappings in order", used>>20, s.table.n)
	}
	// The largest number of pieces takes the largest number of bytes.
	if most := s.maxPieces * pieceMax * 32; most > 257<<20 {
		t.Errorf("%d pieces may be of %d bytes", s.maxPieces, most)
	}
	// An unmap that would split a mapping into two.
	s.clear()
	s.maxMaps = 1
	ok(t, s.add(DMAMap{32, both, 0, 0, 3 * 4096}, -1))
	if err := s.remove(4096, 8191); !errors.Is(err, unix.ENOSPC) || s.table.n != 1 {
		t.Errorf("%v, %d mappings", err, s.table.n)
	}
	ok(t, s.remove(0, 4095))
	ok(t, s.remove(8192, 12287))
	s.clear()
}

// TestMapsGivenBack: memory of mappings that were removed one by one returns to the system while
// the peer stays connected.
func TestMapsGivenBack(t *testing.T) {
	held := func() int64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapSys - m.HeapReleased)
	}
	debug.FreeOSMemory()
	before := held()
	const maps = 1 << 20 // 32 MiB
	s := newSpace(maps)
	for i := range uint64(maps) {
		ok(t, s.add(DMAMap{32, both, 0, i << 12, 4096}, -1))
	}
	if there := held(); there < before+16<<20 {
		t.Fatalf("%d bytes before, %d with %d mappings", before, there, maps)
	}
	for i := range uint64(maps) {
		ok(t, s.remove(i<<12, i<<12+4095))
	}
	if after := held(); after > before+8<<20 {
		t.Errorf("%d bytes before, %d after", before, after)
	}
}

// process is the system's accounting of a process.
type process struct{ rss, fds, mappings int }

func look(t testing.TB, pid int) (p process) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	ok(t, err)
	p.rss, err = strconv.Atoi(strings.Fields(string(b))[1])
	ok(t, err)
	p.rss *= os.Getpagesize()
	b, err = os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	ok(t, err)
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "memfd:") {
			p.mappings++
		}
	}
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	ok(t, err)
	p.fds = len(list)
	return p
}

// TestMapsProcess: a client that maps four million pages costs the server's process the
// documented amount, which is returned when the client ends.
func TestMapsProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("short: four million mappings take some seconds")
	}
	path := filepath.Join(t.TempDir(), "dev.sock")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=listen:"+path)
	cmd.Stderr = os.Stderr
	ok(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	dial := func() *Client {
		c, err := Redial(t.Context(), path, Options{}, func(*Client) error { return nil })
		ok(t, err)
		return c
	}
	c := dial()
	c.Close()
	c = dial()
	before := look(t, cmd.Process.Pid)
	fd := memfd(t, 4096, 0)
	var b []byte
	const n = serverMaxMaps
	for i := range uint64(n) { // all of one page of a file: nothing adjoins
		b = Header{ID: uint16(i), Command: CmdDMAMap, Size: HeaderSize + dmaMapSize, Flags: flagNoReply}.Append(b)
		b = DMAMap{dmaMapSize, both, 0, i << 12, 4096}.Append(b)
		if i == 0 { // with a file and without
			ok(t, c.sock.send(b, []int{fd}))
			b = b[:0]
		}
		if len(b) > 1<<16 {
			ok(t, c.sock.send(b, nil))
			b = b[:0]
		}
	}
	ok(t, c.sock.send(b, nil))
	if err := c.MapDMA(n<<12, 4096, fd, 0, both); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("one more: %v", err)
	}
	full := look(t, cmd.Process.Pid)
	t.Logf("RSS %d MiB before, %d MiB with %d maps", before.rss>>20, full.rss>>20, n)
	if full.rss-before.rss > (256+32)<<20 {
		t.Errorf("%d MiB for %d maps", (full.rss-before.rss)>>20, n)
	}
	c.Close()
	c = dial() // the one before is cleaned up after now
	defer c.Close()
	after := look(t, cmd.Process.Pid)
	t.Logf("RSS %d MiB after", after.rss>>20)
	if after.rss > before.rss+returned<<20 || after.fds != before.fds || after.mappings != before.mappings {
		t.Errorf("%+v after, %+v before", after, before)
	}
}
