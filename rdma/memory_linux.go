package rdma

import (
	"errors"
	"fmt"
	"os"
	"structs"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/memfd"
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
	b    []byte // what was mapped: whole pages
	size int
	ep   *Endpoint // nil: it was not shared

	shared     bool // with ep: a memfd that pfd has, too
	registered bool // with ep: missing pages are pfd's to fill
}

// Alloc makes a buffer of size bytes (alloc_dmable_buf, spec/api.md). It touches
// nothing. The memory is a memfd, shared with pfd, but where its missing pages are pfd's to
// fill (method uffd) and the node sees the process's own tables (Info.SVA). There any
// memory of the process may be source and destination, and a transfer reaches shared memory
// sooner; elsewhere it reaches no other. There it is private memory, too, where the process may
// make no memfd of that size (ulimit -f, a seccomp filter). A child that the process forks has the same memory,
// and no copy. Errors match ErrRequest, ErrGone or ErrClosed, or are pfd's refusal.
func (e *Endpoint) Alloc(size int) (*Buffer, error) {
	if size <= 0 {
		return nil, fmt.Errorf("%w: a buffer of %d bytes", ErrRequest, size)
	}
	b, err := e.alloc(size)
	if err != nil {
		return nil, fmt.Errorf("allocating a buffer of %d bytes: %w", size, err)
	}
	return b, nil
}

func (e *Endpoint) alloc(size int) (*Buffer, error) {
	registered := e.welcome.Method == MethodUFFD
	if registered && e.Info().SVA() {
		return e.allocRegistered(size)
	}
	b, err := e.allocShared(size)
	if err == nil && registered {
		if err = e.Register(b.b); err != nil {
			err = errors.Join(err, b.Free())
		}
		b.registered = true
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// allocShared makes memory of a memfd and shares it.
func (e *Endpoint) allocShared(size int) (*Buffer, error) {
	page := max(int(e.Info().Page), device.PageSize)
	length := (size + page - 1) &^ (page - 1)
	fd, err := MakeMemory(uint64(length), uint64(page))
	if err != nil && e.Info().SVA() {
		// A limit of file sizes, or a filter: transfers reach any memory here, though later.
		b, err := private(size)
		if err != nil {
			return nil, err
		}
		return &Buffer{b: b, size: size, ep: e}, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) // the mapping and pfd keep the file
	b, err := unix.Mmap(fd, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	err = e.Share(VAOf(b), uint64(length), fd, 0, true)
	if err != nil && !e.needless(err) {
		return nil, errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(b)))
	}
	return &Buffer{b: b, size: size, ep: e, shared: true}, nil
}

// private makes anonymous memory of size bytes or more, whole pages.
func private(size int) ([]byte, error) {
	length := (size + device.PageSize - 1) &^ (device.PageSize - 1)
	b, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return b, nil
}

// needless tells whether memory need not be shared for which this is the error of Share: the
// node sees the process's own tables. A refusal of the memory itself (code 12) says that another
// share is in the way, which transfers would reach.
func (e *Endpoint) needless(err error) bool {
	var refused *attach.RefusedError
	inTheWay := errors.As(err, &refused) && refused.Code == attach.CodeMemory
	return e.Info().SVA() && !inTheWay && !errors.Is(err, ErrGone) && !errors.Is(err, ErrClosed)
}

// hugePage is the size of the huge pages that can be shared.
const hugePage = 2 << 20

// MakeMemory makes a memfd of size bytes, whole pages of Info.Page, as Share needs it:
// sealed against shrinking. The descriptor is the caller's. One of huge pages has to
// be mapped before it is shared: pfd then seals it against any other mapping that may
// write, and so against pages that are punched out.
func MakeMemory(size, page uint64) (int, error) {
	flags, seals := 0, unix.F_SEAL_SEAL
	if page == hugePage {
		flags, seals = unix.MFD_HUGETLB|unix.MFD_HUGE_2MB, 0
	}
	return memfd.New("exanet-buffer", int64(size), flags, seals)
}

// Bytes gives the memory. It is nil after Free.
func (b *Buffer) Bytes() []byte {
	if b.b == nil {
		return nil
	}
	return b.b[:b.size:b.size]
}

// VA gives the address of the first byte.
func (b *Buffer) VA() device.VA { return VAOf(b.b) }

// Discard returns size bytes from offset on to the kernel, whole pages: their content is
// gone, and they are absent until somebody touches them or a transfer reaches them. Errors
// match ErrRequest, ErrGone or ErrClosed, or are the kernel's.
func (b *Buffer) Discard(offset, size int) error {
	if offset < 0 || size < 1 || (offset|size)%device.PageSize != 0 || size > len(b.b) || offset > len(b.b)-size {
		return fmt.Errorf("%w: discarding %d bytes from %d of a buffer of %d: want whole pages of it", ErrRequest, size, offset, len(b.b))
	}
	part, advice := b.b[offset:offset+size], unix.MADV_DONTNEED
	if b.shared {
		advice = unix.MADV_REMOVE // of the file, which others have mapped, too
	}
	if err := unix.Madvise(part, advice); err != nil {
		return fmt.Errorf("discarding %d bytes: %w", size, os.NewSyscallError("madvise", err))
	}
	if !b.shared {
		return nil
	}
	return b.ep.Invalidate(VAOf(part), uint64(size))
}

// Free unmaps the memory. No transfer may use it and nobody may touch it any
// more: a peer that still writes to it gets StatusDecode, or writes into what
// is mapped there next. It may be called again.
func (b *Buffer) Free() error {
	if b.b == nil {
		return nil
	}
	if b.registered {
		err := b.ep.Unregister(b.b)
		if err != nil && !errors.Is(err, ErrGone) && !errors.Is(err, ErrClosed) {
			return fmt.Errorf("freeing a buffer: %w", err)
		}
	}
	if b.shared {
		// An attachment that is over has taken it back already.
		err := b.ep.Unshare(b.VA(), uint64(len(b.b)))
		if err != nil && !errors.Is(err, ErrGone) && !errors.Is(err, ErrClosed) {
			return fmt.Errorf("freeing a buffer: %w", err)
		}
	}
	if err := unix.Munmap(b.b); err != nil {
		return fmt.Errorf("freeing a buffer: %w", os.NewSyscallError("munmap", err))
	}
	b.b = nil
	return nil
}

// mappingOf returns va, and what of the memory from first to last is of the mapping that va
// lies in: all of it where the kernel does not say (before Linux 6.11).
func mappingOf(first, va, last device.VA) (_, from, to device.VA) {
	// PROCMAP_QUERY, _IOWR('f', 17, struct procmap_query), of include/uapi/linux/fs.h (6.11).
	const query = 0xc0686611
	q := struct {
		_                             structs.HostLayout
		size, flags, addr, start, end uint64
		_                             [8]uint64
	}{size: 104, addr: uint64(va)}
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return va, first, last
	}
	defer f.Close()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), query, uintptr(unsafe.Pointer(&q))); errno != 0 {
		return va, first, last
	}
	return va, max(first, device.VA(q.start)), min(last, device.VA(q.end)-1)
}
