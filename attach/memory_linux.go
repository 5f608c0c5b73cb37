package attach

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/memfd"
)

// Seals of an attachment's memory (memfd_create(2)). Without the first a peer could truncate it,
// and the next access would be a SIGBUS. Without the last, which is added when both sides have
// mapped it, a peer could punch holes (fallocate(2), MADV_REMOVE), and pfd would sleep in a load.
// Existing mappings stay writable, and no new writable one can be made.
const (
	memorySeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	mappedSeals = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
)

// Memory is the memory that pfd creates for one attachment: the mapped memfd and the eventfd that
// wakes pfd.
type Memory struct {
	*Pages
	fd, wake int
}

// NewMemory creates the sealed, initialized memfd of four pages, and the eventfd.
func NewMemory() (*Memory, error) { return newMemory(MemorySize) }

// NewThreadMemory is NewMemory with the Ports of threads, whose pages are absent until they are used.
func NewThreadMemory() (*Memory, error) { return newMemory(ThreadMemorySize) }

func newMemory(size int) (*Memory, error) {
	fd, err := memfd.New("pfd-attachment", int64(size), 0, 0)
	if err != nil {
		return nil, fmt.Errorf("create the attachment's memory: %w", err)
	}
	m := &Memory{fd: fd, wake: -1}
	if err := m.init(size); err != nil {
		return nil, errors.Join(fmt.Errorf("create the attachment's memory: %w", err), m.Close())
	}
	return m, nil
}

func (m *Memory) init(size int) error {
	b, err := unix.Mmap(m.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	if m.Pages, err = NewPages(b); err != nil {
		return errors.Join(err, unix.Munmap(b))
	}
	m.reset()
	m.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return os.NewSyscallError("eventfd", err)
}

// Seal seals the memory, once both sides have mapped it, so that no process can remove its pages,
// and pages in those that were removed before. From then on the pages are present for pfd and
// charged to pfd, so that no limit of the peer reclaims them; they may be swapped out like pfd's
// own memory. If the peer has prevented sealing, the error matches ErrMemory.
func (m *Memory) Seal() error {
	_, err := unix.FcntlInt(uintptr(m.fd), unix.F_ADD_SEALS, mappedSeals)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: it has been sealed by the process", ErrMemory)
	}
	if err != nil {
		return fmt.Errorf("seal the attachment's memory: %w", os.NewSyscallError("fcntl F_ADD_SEALS", err))
	}
	m.touch()
	return nil
}

// FD returns the memfd, which the Memory owns.
func (m *Memory) FD() int { return m.fd }

// WakeFD returns the eventfd that the process writes when pfd sleeps, which the Memory owns. pfd
// watches it edge-triggered and never reads it.
func (m *Memory) WakeFD() int { return m.wake }

// Close unmaps the pages and closes both descriptors. The Pages must not be used afterwards. Close
// may be called again.
func (m *Memory) Close() error {
	var errs []error
	if m.Pages != nil {
		errs = append(errs, os.NewSyscallError("munmap", unix.Munmap(m.b)))
		m.Pages = nil
	}
	for _, fd := range []*int{&m.fd, &m.wake} {
		if *fd >= 0 {
			errs = append(errs, os.NewSyscallError("close", unix.Close(*fd)))
			*fd = -1
		}
	}
	return errors.Join(errs...)
}

// MapMemory maps an attachment's memfd that pfd sent. The mapping lives until the Pages is
// unreachable, because a transfer's handle may be used long after the attachment was closed.
// Errors for a wrong size or missing seals match ErrMemory.
func MapMemory(fd int) (*Pages, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("map the attachment's memory: %w", os.NewSyscallError("fstat", err))
	}
	if st.Size != MemorySize && st.Size != ThreadMemorySize {
		return nil, fmt.Errorf("%w: memfd of %d bytes, not %d, or %d with threads", ErrMemory, st.Size, MemorySize, ThreadMemorySize)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: its seals cannot be read: %w", ErrMemory, err)
	}
	if seals&memorySeals != memorySeals {
		return nil, fmt.Errorf("%w: seals %#x, at least %#x are needed", ErrMemory, seals, memorySeals)
	}
	b, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the attachment's memory: %w", os.NewSyscallError("mmap", err))
	}
	p, err := NewPages(b)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(b))
	}
	// Only p refers to b: the mapping is removed with p.
	runtime.AddCleanup(p, func(b []byte) { _ = unix.Munmap(b) }, b)
	return p, nil
}
