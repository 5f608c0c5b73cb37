package attach

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/memfd"
)

// Seals that an attachment's memory has (memfd_create(2)). Without the first a
// peer could truncate it, and the next access would be a SIGBUS. Without the last,
// which comes when both sides have mapped it, a peer could punch holes
// (fallocate(2), MADV_REMOVE), and pfd would sleep in a load: mappings that are
// there stay writable, and nobody makes another.
const (
	memorySeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	mappedSeals = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
)

// Memory is what pfd makes for one attachment: the mapped memfd and the eventfd
// that wakes pfd.
type Memory struct {
	*Pages
	fd, wake int
}

// NewMemory makes the sealed memfd of four pages with its first content, and
// the eventfd.
func NewMemory() (*Memory, error) {
	fd, err := memfd.New("pfd-attachment", MemorySize, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("making the attachment's memory: %w", err)
	}
	m := &Memory{fd: fd, wake: -1}
	if err := m.init(); err != nil {
		return nil, errors.Join(fmt.Errorf("making the attachment's memory: %w", err), m.Close())
	}
	return m, nil
}

func (m *Memory) init() error {
	b, err := unix.Mmap(m.fd, 0, MemorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
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

// Seal keeps everybody from taking pages of the memory away, when both sides have
// mapped it, and brings in those that somebody took before: pfd finds them there
// from now on, and they are charged to pfd, so that no limit of the peer's reclaims
// them. Pfd's own memory may be swapped out as they may. Errors match ErrMemory
// where the peer has barred it.
func (m *Memory) Seal() error {
	_, err := unix.FcntlInt(uintptr(m.fd), unix.F_ADD_SEALS, mappedSeals)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: it has been sealed by the process", ErrMemory)
	}
	if err != nil {
		return fmt.Errorf("sealing the attachment's memory: %w", os.NewSyscallError("fcntl F_ADD_SEALS", err))
	}
	m.touch()
	return nil
}

// FD gives the memfd. It stays the Memory's.
func (m *Memory) FD() int { return m.fd }

// WakeFD gives the eventfd that the process writes when pfd sleeps. pfd watches
// it edge-triggered and never reads it. It stays the Memory's.
func (m *Memory) WakeFD() int { return m.wake }

// Close unmaps the pages and closes both descriptors. Nobody may use the Pages
// any more. It may be called again.
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

// MapMemory maps an attachment's memfd that pfd handed over. The mapping lives
// until the Pages is no longer reachable: a transfer's handle may be asked long
// after the attachment was closed. Errors for a wrong size or missing seals
// match ErrMemory.
func MapMemory(fd int) (*Pages, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("mapping the attachment's memory: %w", os.NewSyscallError("fstat", err))
	}
	if st.Size != MemorySize {
		return nil, fmt.Errorf("%w: memfd of %d bytes, want %d", ErrMemory, st.Size, MemorySize)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: its seals cannot be read: %w", ErrMemory, err)
	}
	if seals&memorySeals != memorySeals {
		return nil, fmt.Errorf("%w: seals %#x, want at least %#x", ErrMemory, seals, memorySeals)
	}
	b, err := unix.Mmap(fd, 0, MemorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping the attachment's memory: %w", os.NewSyscallError("mmap", err))
	}
	p, err := NewPages(b)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(b))
	}
	// Nothing holds b but p: the mapping goes when p does.
	runtime.AddCleanup(p, func(b []byte) { _ = unix.Munmap(b) }, b)
	return p, nil
}
