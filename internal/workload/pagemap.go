package workload

import (
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pagemap reads the residency of this process's own pages
// (Documentation/admin-guide/mm/pagemap.rst).
type pagemap struct {
	file    *os.File
	entries []byte
}

func openPagemap() (*pagemap, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil, fmt.Errorf("residency of own pages: %w", err)
	}
	return &pagemap{file: f, entries: make([]byte, 8*512)}, nil
}

func (p *pagemap) close() error { return p.file.Close() }

// resident counts the pages of b, which must be whole pages, that are present (bit 63) or
// swapped out (bit 62).
func (p *pagemap) resident(b []byte) (int, error) { return p.count(b, 3) }

// swapped counts the pages of b, which must be whole pages, that are in swap (bit 62).
func (p *pagemap) swapped(b []byte) (int, error) { return p.count(b, 1) }

// count counts the pages of b whose entries have a bit of mask set in the top two bits.
func (p *pagemap) count(b []byte, mask uint64) (int, error) {
	first := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) / pageSize
	count := 0
	for n := uint64(len(b) / pageSize); n > 0; {
		entries := p.entries[:min(uint64(len(p.entries)), 8*n)]
		if _, err := p.file.ReadAt(entries, int64(8*first)); err != nil {
			return 0, fmt.Errorf("residency of own pages: %w", err)
		}
		for i := 0; i < len(entries); i += 8 {
			if binary.NativeEndian.Uint64(entries[i:])>>62&mask != 0 {
				count++
			}
		}
		first += uint64(len(entries) / 8)
		n -= uint64(len(entries) / 8)
	}
	return count, nil
}

// residentHuge is like residentShared, but for n pages in a file of huge pages. It uses the
// file's number of 512-byte blocks (stat(2)), because mincore reports only the pages of such
// a file that this process has mapped.
func residentHuge(fd, n int) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("residency of huge pages: %w", os.NewSyscallError("fstat", err))
	}
	return min(n, int(st.Blocks*512/pageSize)), nil
}

// residentShared counts the pages of b, which must be whole pages of a memfd's mapping, that
// are in the file, also those that another process touched. pagemap reports only the pages
// that this process has mapped.
func residentShared(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	there := make([]byte, len(b)/pageSize)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(unsafe.Pointer(unsafe.SliceData(there))))
	if errno != 0 {
		return 0, fmt.Errorf("residency of shared pages: %w", os.NewSyscallError("mincore", errno))
	}
	count := 0
	for _, t := range there {
		count += int(t & 1)
	}
	return count, nil
}
