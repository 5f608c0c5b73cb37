package rdma

import (
	"encoding/binary"
	"os"

	"github.com/exanet/pfd/device"
)

// Bits of an entry (Documentation/admin-guide/mm/pagemap.rst).
const (
	pagePresent = 1 << 63
	pageFile    = 1 << 61 // of a file, or shared
	pageOwn     = 1 << 56 // mapped only once
)

// residence reads which pages of this process are present from its own pagemap; their changes
// count what the page-fault goroutine pages in. Only that goroutine uses it.
type residence struct {
	f    *os.File // nil: it could not be opened, and nothing is counted
	b    [maxFaultPages * 8]byte
	list [2][maxFaultPages]uint64
}

func openResidence() *residence {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		f = nil
	}
	return &residence{f: f}
}

func (r *residence) close() {
	if r.f != nil {
		_ = r.f.Close() // it was only read
	}
}

// read returns the entries of the pages from va on, fewer at the end.
func (r *residence) read(va device.VA, pages int) []uint64 { return r.into(&r.list[0], va, pages) }

func (r *residence) into(list *[maxFaultPages]uint64, va device.VA, pages int) []uint64 {
	if r.f == nil {
		return nil
	}
	n, _ := r.f.ReadAt(r.b[:pages*8], int64(va>>device.PageShift)*8) // entries that cannot be read are not counted
	for i := range n / 8 {
		list[i] = binary.NativeEndian.Uint64(r.b[8*i:])
	}
	return list[:n/8]
}

// since counts the pages that have become present or, for a write, exclusive.
func (r *residence) since(before []uint64, va device.VA, pages int, write bool) (count uint64) {
	own := func(e uint64) bool { return e&(pagePresent|pageFile|pageOwn) == pagePresent|pageOwn }
	for i, e := range r.into(&r.list[1], va, pages) {
		if i < len(before) && e&pagePresent != 0 && (before[i]&pagePresent == 0 || write && own(e) && !own(before[i])) {
			count++
		}
	}
	return count
}
