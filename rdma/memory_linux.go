package rdma

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"structs"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/memfd"
)

// VAOf returns the virtual address of b's first byte, b being bytes or completion words. The caller keeps b referenced while a device
// may use the address. Memory of Go's heap does not move; memory on a goroutine's stack does
// (Write and Export handle both). The package's unsafe pointers are all in this file.
func VAOf[T byte | uint64](b []T) device.VA {
	return device.VA(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// Word returns the 64-bit word at offset of b, for WaitNotification. It must be inside b and
// aligned to 8 bytes; errors match ErrRequest.
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

// armWord returns the n-th word of 4 bytes of b.
func armWord(b []byte, n int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&b[4*n])) }

// Buffer is page-aligned memory outside Go's heap, absent until it is touched.
type Buffer struct {
	b    []byte // the mapping: whole pages
	size int
	ep   *Endpoint // nil: not shared

	shared     bool  // with ep: a memfd that pfd has mapped, too
	registered bool  // with ep: pfd fills missing pages
	private    error // why this process could make no memory to share

	folio   int   // pages that come in together
	single  error // why folio is 1 although folios were requested
	aligned bool  // mapped by mapAligned
}

// AllocOptions are the options of AllocWith.
type AllocOptions struct {
	// Folios lets the kernel bring in several pages at the first touch of one: absent memory then
	// comes in at nearly the speed of present memory, and sparse touches use more memory. The
	// administrator enables it for a size
	// (/sys/kernel/mm/transparent_hugepage/hugepages-64kB/shmem_enabled). Where it is not possible
	// the memory comes in by single pages: Buffer.Folio returns what the memory has.
	Folios bool
}

// Alloc returns a buffer of size bytes (alloc_dmable_buf, spec/api.md) without touching it. The
// memory is a memfd shared with pfd. On a node that sees the process's own page tables (Info.SVA)
// any memory may be source and destination, and shared memory is only faster. There the buffer is
// private memory if pfd fills its missing pages (method uffd), or if the process may not create a
// memfd of that size (ulimit -f, a seccomp filter). A forked child shares the memory and has no
// copy. Errors match ErrRequest, ErrGone or ErrClosed, or are pfd's refusal.
func (e *Endpoint) Alloc(size int) (*Buffer, error) { return e.AllocWith(size, AllocOptions{}) }

// AllocWith is like Alloc, with options.
func (e *Endpoint) AllocWith(size int, o AllocOptions) (*Buffer, error) {
	if size <= 0 {
		return nil, fmt.Errorf("%w: a buffer of %d bytes", ErrRequest, size)
	}
	b, err := e.alloc(size, o.Folios)
	if err != nil {
		return nil, fmt.Errorf("allocate a buffer of %d bytes: %w", size, err)
	}
	return b, nil
}

func (e *Endpoint) alloc(size int, folios bool) (*Buffer, error) {
	registered := e.welcome.Method == MethodUFFD
	if registered && e.Info().SVA() {
		return e.allocRegistered(size, folios)
	}
	b, err := e.allocShared(size, folios && !registered && e.Info().SVA())
	if err == nil && folios && b.folio == 1 && b.single == nil {
		b.single = e.single()
	}
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

// allocShared creates a memfd and shares it.
func (e *Endpoint) allocShared(size int, folios bool) (*Buffer, error) {
	page := max(int(e.Info().Page), device.PageSize)
	length := (size + page - 1) &^ (page - 1)
	fd, err := MakeMemory(uint64(length), uint64(page))
	if err != nil && e.Info().SVA() {
		// A limit of file sizes, or a filter: transfers reach private memory here, too, though
		// more slowly.
		b := &Buffer{size: size, ep: e, folio: 1, private: err}
		if folios {
			b.single = fmt.Errorf("%w: this process cannot create shared memory: %w", ErrFolios, err)
		}
		b.b, err = private(size)
		if err != nil {
			return nil, err
		}
		return b, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) // the mapping and pfd keep the file
	folios = folios && page == device.PageSize
	b := &Buffer{size: size, ep: e, shared: true, folio: page / device.PageSize, aligned: folios}
	if folios {
		b.b, err = mapAligned(fd, length)
	} else {
		b.b, err = unix.Mmap(fd, 0, length, access, sharedFlags)
	}
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	hint := 1
	if folios {
		b.folio, b.single = folioOf(fd, b.b)
		hint = b.folio
	}
	refused, err := e.share(VAOf(b.b), uint64(length), fd, 0, true, hint)
	if err != nil && !e.needless(err) {
		return nil, errors.Join(err, b.unmap())
	}
	if refused != nil {
		b.folio, b.single = 1, fmt.Errorf("%w: this pfd does not support it: use a newer one: %w", ErrFolios, refused)
	}
	return b, nil
}

// The rights of a buffer's mapping, and the flags of a shared one.
const (
	access      = unix.PROT_READ | unix.PROT_WRITE
	sharedFlags = unix.MAP_SHARED | unix.MAP_NORESERVE
)

// mapAligned maps a memfd at an address that is aligned to the largest folio that the length has
// room for, up to 2 MiB.
func mapAligned(fd, length int) ([]byte, error) {
	align := min(uintptr(1)<<(bits.Len(uint(length))-1), attach.MaxFolio*device.PageSize)
	all := uintptr(length) + align
	p, err := unix.MmapPtr(-1, 0, nil, all, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	before := -uintptr(p) % align
	at := unsafe.Add(p, before)
	if _, err = unix.MmapPtr(fd, 0, at, uintptr(length), access, sharedFlags|unix.MAP_FIXED); err != nil {
		return nil, errors.Join(err, unix.MunmapPtr(p, all))
	}
	if before > 0 {
		err = unix.MunmapPtr(p, before)
	}
	return unsafe.Slice((*byte)(at), length), errors.Join(err, unix.MunmapPtr(unsafe.Add(at, length), align-before))
}

// unmap unmaps the memory. Package unix unmaps only what its Mmap has mapped, and a program may
// have called it.
func (b *Buffer) unmap() error {
	if b.aligned {
		return os.NewSyscallError("munmap", unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(b.b)), uintptr(len(b.b))))
	}
	return os.NewSyscallError("munmap", unix.Munmap(b.b))
}

// private returns anonymous memory of size bytes, rounded up to whole pages.
func private(size int) ([]byte, error) {
	length := (size + device.PageSize - 1) &^ (device.PageSize - 1)
	b, err := unix.Mmap(-1, 0, length, access, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return b, nil
}

// needless reports whether memory may stay unshared although Share returned err: the node sees the
// process's own page tables. A refusal of the memory itself (code 12) means that another share is
// at this address, which transfers would access.
func (e *Endpoint) needless(err error) bool {
	var refused *attach.RefusedError
	inTheWay := errors.As(err, &refused) && refused.Code == attach.CodeMemory
	return e.Info().SVA() && !inTheWay && !errors.Is(err, ErrGone) && !errors.Is(err, ErrClosed)
}

// hugePage is the size of the huge pages that can be shared.
const hugePage = 2 << 20

// MakeMemory returns the descriptor of a new memfd of size bytes, whole pages of Info.Page, sealed
// against shrinking as Share requires. The caller closes it. A memfd of huge pages must be mapped
// before it is shared: pfd then seals it against any other writable mapping, and so against hole
// punching.
func MakeMemory(size, page uint64) (int, error) {
	flags, seals := 0, unix.F_SEAL_SEAL
	if page == hugePage {
		flags, seals = unix.MFD_HUGETLB|unix.MFD_HUGE_2MB, 0
	}
	return memfd.New("exanet-buffer", int64(size), flags, seals)
}

// Bytes returns the memory. It is nil after Free.
func (b *Buffer) Bytes() []byte {
	if b.b == nil {
		return nil
	}
	return b.b[:b.size:b.size]
}

// VA returns the address of the first byte.
func (b *Buffer) VA() device.VA { return VAOf(b.b) }

// Discard returns size bytes from offset on, whole pages, to the kernel. Their content is lost,
// and they are absent until the process or a transfer accesses them. Errors match ErrRequest,
// ErrGone or ErrClosed, or are the kernel's.
func (b *Buffer) Discard(offset, size int) error {
	if offset < 0 || size < 1 || (offset|size)%device.PageSize != 0 || size > len(b.b) || offset > len(b.b)-size {
		return fmt.Errorf("%w: discard %d bytes from %d of a buffer of %d: give whole pages inside the buffer", ErrRequest, size, offset, len(b.b))
	}
	part, advice := b.b[offset:offset+size], unix.MADV_DONTNEED
	if b.shared {
		advice = unix.MADV_REMOVE // of the file, which others map, too
	}
	if err := unix.Madvise(part, advice); err != nil {
		return fmt.Errorf("discard %d bytes: %w", size, os.NewSyscallError("madvise", err))
	}
	if !b.shared {
		return nil
	}
	return b.ep.Invalidate(VAOf(part), uint64(size))
}

// Free unmaps the memory, which no transfer and no thread may use any more. A peer that still
// writes to it gets StatusDecode, or writes into what is mapped there next. Free may be called
// again.
func (b *Buffer) Free() error {
	if b.b == nil {
		return nil
	}
	if b.registered {
		err := b.ep.Unregister(b.b)
		if err != nil && !errors.Is(err, ErrGone) && !errors.Is(err, ErrClosed) {
			return fmt.Errorf("free a buffer: %w", err)
		}
	}
	if b.shared {
		// If the attachment has ended, the memory is no longer shared.
		err := b.ep.Unshare(b.VA(), uint64(len(b.b)))
		if err != nil && !errors.Is(err, ErrGone) && !errors.Is(err, ErrClosed) {
			return fmt.Errorf("free a buffer: %w", err)
		}
	}
	if err := b.unmap(); err != nil {
		return fmt.Errorf("free a buffer: %w", err)
	}
	b.b = nil
	return nil
}

// mappingOf returns va, and the part of the memory from first to last that lies in va's mapping:
// all of it if the kernel cannot say (before Linux 6.11).
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
