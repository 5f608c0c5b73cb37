package workload

import (
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"
)

// pagemap tells which of this process's own pages are there
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

func (p *pagemap) close() error {
	if err := p.file.Close(); err != nil {
		return fmt.Errorf("pagemap: %w", err)
	}
	return nil
}

// resident counts the pages of b, whole pages, that hold something: bit 63
// present, bit 62 swapped out.
func (p *pagemap) resident(b []byte) (int, error) {
	first := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) / pageSize
	count := 0
	for n := uint64(len(b) / pageSize); n > 0; {
		entries := p.entries[:min(uint64(len(p.entries)), 8*n)]
		if _, err := p.file.ReadAt(entries, int64(8*first)); err != nil {
			return 0, fmt.Errorf("residency of own pages: %w", err)
		}
		for i := 0; i < len(entries); i += 8 {
			if binary.NativeEndian.Uint64(entries[i:])>>62 != 0 {
				count++
			}
		}
		first += uint64(len(entries) / 8)
		n -= uint64(len(entries) / 8)
	}
	return count, nil
}
