// Package memfd creates memory that processes share (memfd_create(2)).
package memfd

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/limits"
)

// New creates a non-executable memfd of a fixed size in bytes. It adds seals to the ones that
// fix the size. flags may select huge pages.
func New(name string, size int64, flags, seals int) (int, error) {
	flags |= unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3 has no MFD_NOEXEC_SEAL
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return -1, limits.Explain(os.NewSyscallError("memfd_create", err))
	}
	if err = os.NewSyscallError("ftruncate", unix.Ftruncate(fd, size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|seals)
		err = os.NewSyscallError("fcntl F_ADD_SEALS", err)
	}
	if err != nil {
		return -1, errors.Join(limits.Explain(err), os.NewSyscallError("close", unix.Close(fd)))
	}
	return fd, nil
}
