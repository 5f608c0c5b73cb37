package rdma

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// VAOf gives the virtual address of b's first byte. The caller keeps b
// referenced while a device may use the address; memory of Go's heap does not
// move, memory on a goroutine's stack does (Write and Export see to both).
// This file holds the package's unsafe pointers.
func VAOf(b []byte) device.VA {
	return device.VA(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// Word gives the 64-bit word at offset of b, for WaitNotification. It must be
// inside b and aligned to 8 bytes; errors match ErrRequest.
func Word(b []byte, offset uint64) (*uint64, error) {
	if offset > uint64(len(b)) || uint64(len(b))-offset < 8 {
		return nil, fmt.Errorf("%w: word at offset %d of %d bytes", ErrRequest, offset, len(b))
	}
	p := unsafe.Pointer(&b[offset])
	if uintptr(p)%8 != 0 {
		return nil, fmt.Errorf("%w: word at address %#x is not aligned to 8 bytes", ErrRequest, uintptr(p))
	}
	return (*uint64)(p), nil
}

// Buffer is page-aligned memory outside Go's heap, absent until it is touched.
type Buffer struct {
	b []byte
}

// Alloc makes a buffer of size bytes (alloc_dmable_buf, spec/api.md). It is a
// convenience: any memory of the process may be source and destination. It
// touches nothing.
func (e *Endpoint) Alloc(size int) (*Buffer, error) {
	if size <= 0 {
		return nil, fmt.Errorf("%w: a buffer of %d bytes", ErrRequest, size)
	}
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("allocating a buffer of %d bytes: %w", size, os.NewSyscallError("mmap", err))
	}
	return &Buffer{b: b}, nil
}

// Bytes gives the memory. It is nil after Free.
func (b *Buffer) Bytes() []byte { return b.b }

// VA gives the address of the first byte.
func (b *Buffer) VA() device.VA { return VAOf(b.b) }

// Free unmaps the memory. No transfer may use it and nobody may touch it any
// more: a peer that still writes to it gets StatusDecode, or writes into what
// is mapped there next. It may be called again.
func (b *Buffer) Free() error {
	if b.b == nil {
		return nil
	}
	err := unix.Munmap(b.b)
	if err != nil {
		return fmt.Errorf("freeing a buffer: %w", os.NewSyscallError("munmap", err))
	}
	b.b = nil
	return nil
}
