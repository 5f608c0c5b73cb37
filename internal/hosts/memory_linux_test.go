package hosts

import (
	"testing"

	"golang.org/x/sys/unix"
)

// fixedMemory is private memory that can be mapped again at the same address.
type fixedMemory struct{ b []byte }

func fixed(t *testing.T, size int) *fixedMemory {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return &fixedMemory{b}
}

// renew makes all pages absent; they then contain zeros.
func (m *fixedMemory) renew(t *testing.T) {
	t.Helper()
	if err := unix.Madvise(m.b, unix.MADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}
