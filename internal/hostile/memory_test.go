package hostile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// make creates a buffer of a kind. With seed 0 it stays untouched.
func (a *obedient) make(o order) (r reply, err error) {
	const rw, anon = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	m := &area{fd: -1}
	size := int(o.Size)
	whole := (size + device.PageSize - 1) &^ (device.PageSize - 1)
	switch o.Kind {
	case "anonymous", "": // small pages, so that a fault pages one in
		if a.ep != nil && !a.ep.Caps().SVA { // shared
			b, err := a.ep.Alloc(whole)
			if err != nil {
				return r, err
			}
			m.b = b.Bytes()
			a.keep = append(a.keep, b)
		} else if m.b, err = a.own(whole); err == nil {
			_ = unix.Madvise(m.b, unix.MADV_NOHUGEPAGE)
			if a.ep != nil && a.ep.Info().Method == rdma.MethodUFFD {
				err = a.ep.Register(m.b)
			}
		}
	case "shared":
		m.b, err = unix.Mmap(-1, 0, whole, rw, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	case "memfd":
		if m.fd, err = unix.MemfdCreate("hostile", unix.MFD_CLOEXEC); err == nil {
			err = m.file(whole, unix.MAP_SHARED)
		}
	case "swapped": // shared after its pages were swapped out, which works only while no other process maps them
		if m.fd, err = rdma.MakeMemory(uint64(whole), device.PageSize); err == nil {
			err = m.file(whole, unix.MAP_SHARED)
		}
		if err == nil {
			fill(m.b[:size], o.Seed)
			o.Seed = 0
			err = pageOut(m.b)
		}
		if err == nil {
			err = a.ep.Share(device.VA(uintptr(unsafe.Pointer(unsafe.SliceData(m.b)))), uint64(whole), m.fd, 0, true)
		}
	case "alloc": // shared, by any node
		b, err := a.ep.Alloc(whole)
		if err != nil {
			return r, err
		}
		m.b = b.Bytes()
		a.keep = append(a.keep, b)
	case "folios": // shared, and comes in by folios where that is possible
		b, err := a.ep.AllocWith(whole, rdma.AllocOptions{Folios: true})
		if err != nil {
			return r, err
		}
		r.Count, err = b.Folio()
		if r.Count == 1 && !errors.Is(err, rdma.ErrFolios) {
			return r, fmt.Errorf("single pages without a reason: %w", err)
		}
		m.b = b.Bytes()
		a.keep = append(a.keep, b)
	case "shared, mapped anew": // no userfaultfd fills it any longer
		if m.fd, err = rdma.MakeMemory(uint64(whole), device.PageSize); err == nil {
			err = m.file(whole, unix.MAP_SHARED)
		}
		if err == nil {
			err = a.ep.Share(rdma.VAOf(m.b), uint64(whole), m.fd, 0, true)
		}
		if err == nil {
			_, err = unix.MmapPtr(m.fd, 0, unsafe.Pointer(unsafe.SliceData(m.b)), uintptr(whole), rw, unix.MAP_SHARED|unix.MAP_FIXED)
		}
	case "registered memfd": // its first half is in the file already, but not mapped
		if m.fd, err = unix.MemfdCreate("hostile", unix.MFD_CLOEXEC); err == nil {
			err = m.file(whole, unix.MAP_SHARED)
		}
		if err == nil {
			if _, err = unix.Pwrite(m.fd, make([]byte, whole/2), 0); err == nil {
				err = a.ep.Register(m.b)
			}
		}
	case "shared file", "private file":
		f, ferr := os.CreateTemp(o.Path, "file")
		if ferr != nil {
			return r, ferr
		}
		_ = os.Remove(f.Name())
		m.fd, m.name = int(f.Fd()), f.Name()
		a.keep = append(a.keep, f)
		flags := unix.MAP_SHARED
		if o.Kind == "private file" {
			flags = unix.MAP_PRIVATE
		}
		err = m.file(whole, flags)
	case "path": // an existing file
		if m.fd, err = unix.Open(o.Path, unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
			m.b, err = unix.Mmap(m.fd, 0, whole, rw, unix.MAP_SHARED)
		}
	case "hugetlb":
		const huge = 2 << 20
		m.b, err = unix.Mmap(-1, 0, (whole+huge-1)&^(huge-1), rw, anon|unix.MAP_HUGETLB)
	case "empty hugetlb": // most machines reserve no huge pages
		m.b, err = unix.Mmap(-1, 0, 2<<20, rw, anon|unix.MAP_HUGETLB|unix.MAP_NORESERVE)
	case "guard":
		const guardInstall = 102 // MADV_GUARD_INSTALL, Linux 6.13
		if m.b, err = unix.Mmap(-1, 0, whole, rw, anon); err == nil {
			err = unix.Madvise(m.b, guardInstall)
		}
	case "secret", "secret present":
		fd, _, errno := unix.Syscall(unix.SYS_MEMFD_SECRET, unix.O_CLOEXEC, 0, 0)
		if m.fd = int(fd); errno != 0 {
			err = errno
		} else if err = m.file(whole, unix.MAP_SHARED); err == nil && o.Kind == "secret present" {
			clear(m.b)
		}
	case "huge":
		m.b, err = hugeAligned(whole)
	case "heap":
		m.b = make([]byte, size)
		a.keep = append(a.keep, m.b)
	case "stack":
		m.b, err = stack(size)
	case "mergeable":
		if m.b, err = unix.Mmap(-1, 0, whole, rw, anon); err == nil {
			err = unix.Madvise(m.b, unix.MADV_MERGEABLE)
		}
	case "own userfaultfd":
		if m.b, err = unix.Mmap(-1, 0, whole, rw, anon); err == nil {
			err = a.register(m.b)
		}
	case "fixed": // at an address that the test chooses
		m.b, err = fixed(uintptr(o.Off), whole)
	case "hole": // an address of unmapped memory
		if m.b, err = a.own(whole); err == nil {
			err = unix.MunmapPtr(unsafe.Pointer(&m.b[0]), uintptr(whole))
		}
	default:
		err = fmt.Errorf("unknown kind %q", o.Kind)
	}
	if err != nil {
		return r, fmt.Errorf("buffer of kind %s: %w", o.Kind, err)
	}
	m.b = m.b[:size]
	m.va = device.VA(uintptr(unsafe.Pointer(unsafe.SliceData(m.b))))
	if o.Seed != 0 {
		fill(m.b, o.Seed)
	}
	a.buffers[o.ID] = m
	r.VA = uint64(m.va)
	if a.ep != nil {
		e, err := a.ep.ExportVA(m.va, o.Size)
		if err != nil {
			return r, err
		}
		r.Remote = e.String()
	}
	return r, nil
}

// file maps the area's file.
func (m *area) file(size, flags int) (err error) {
	if err = unix.Ftruncate(m.fd, int64(size)); err == nil {
		m.b, err = unix.Mmap(m.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
	}
	return err
}

// pageOut swaps all pages out.
func pageOut(b []byte) error {
	there := make([]byte, len(b)/device.PageSize)
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if err := unix.Madvise(b, unix.MADV_PAGEOUT); err != nil {
			return err
		}
		if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(unsafe.Pointer(unsafe.SliceData(there)))); errno != 0 {
			return errno
		}
		if bytes.IndexByte(there, 1) < 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d pages of %d stay in memory", bytes.Count(there, []byte{1}), len(there))
		}
	}
}

// lonely is an address far from where the kernel and the Go runtime place mappings, beside the
// tests' fixed addresses: memory that a test unmaps there stays unmapped.
const lonely = 0x7200_0000_0000

// own maps anonymous memory at lonely addresses.
func (a *obedient) own(size int) ([]byte, error) {
	at := lonely + a.mapped
	a.mapped += uintptr(size) + device.PageSize
	return fixed(at, size)
}

// hugeAligned returns memory that can have huge pages from its first byte on.
func hugeAligned(size int) ([]byte, error) {
	const huge = 2 << 20
	b, err := unix.Mmap(-1, 0, size+huge, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (huge - 1)
	b = b[skip : skip+size]
	return b, unix.Madvise(b, unix.MADV_HUGEPAGE)
}

func fixed(at uintptr, size int) ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, unsafe.Add(nil, at), uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), size), nil
}

// stack returns the lowest bytes of the first thread's stack: the kernel maps it far below the
// used part.
func stack(size int) ([]byte, error) {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		var from, to uintptr
		if strings.HasSuffix(strings.TrimSpace(line), "[stack]") {
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
				return nil, err
			}
			if to-from < uintptr(size)+32<<10 {
				return nil, fmt.Errorf("the stack has %d bytes only", to-from)
			}
			return unsafe.Slice((*byte)(unsafe.Add(nil, from)), size), nil
		}
	}
	return nil, fmt.Errorf("no stack in /proc/self/maps")
}

// vacant keeps shared but unmapped addresses from being reused: a new mapping there could not
// be shared.
func (a *obedient) vacant(b []byte) error {
	if a.ep == nil || a.ep.Caps().SVA {
		return nil
	}
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	return err
}

// move moves the memory by mremap; nothing is mapped at its old address.
func (a *obedient) move(m *area) error {
	const mayMove, toFixed = 1, 2
	b, err := a.own(2 * len(m.b)) // far away, else it could grow in place
	if err != nil {
		return err
	}
	to, _, errno := unix.Syscall6(unix.SYS_MREMAP, uintptr(m.va), uintptr(len(m.b)), uintptr(len(b)), mayMove|toFixed, uintptr(unsafe.Pointer(&b[0])), 0)
	if errno != 0 {
		return errno
	}
	m.b = unsafe.Slice((*byte)(unsafe.Add(nil, to)), len(m.b))
	return nil
}

// Values of linux/userfaultfd.h.
const (
	uffdioAPI      = 3<<30 | 24<<16 | 0xaa<<8 | 0x3f
	uffdioRegister = 3<<30 | 32<<16 | 0xaa<<8 // number 0x00
)

// register registers b with the process's own userfaultfd, which is never read.
func (a *obedient) register(b []byte) error {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		return fmt.Errorf("userfaultfd: %w", errno)
	}
	api := [3]uint64{0xaa}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uffdioAPI, uintptr(unsafe.Pointer(&api))); errno != 0 {
		return fmt.Errorf("UFFDIO_API: %w", errno)
	}
	reg := [4]uint64{uint64(uintptr(unsafe.Pointer(&b[0]))), uint64(len(b)), 1} // missing pages
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uffdioRegister, uintptr(unsafe.Pointer(&reg))); errno != 0 {
		return fmt.Errorf("UFFDIO_REGISTER: %w", errno)
	}
	return nil
}
