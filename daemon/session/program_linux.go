package session

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/limits"
)

// copyOf returns the program that processes run as their memory helper, made from exe. Every
// process that needs a helper gets its descriptor. A pfd of root's returns a sealed copy: a
// process of uid 0 with few rights could reopen the file itself for writing. Any other pfd
// returns the file, since a process runs only a program of root's or its own user's (package
// attach).
func copyOf(exe *os.File) (*os.File, error) {
	if os.Geteuid() != 0 {
		return exe, nil
	}
	fd, err := unix.MemfdCreate("pfd", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // MFD_EXEC came with Linux 6.3
		fd, err = unix.MemfdCreate("pfd", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return exe, nil // vm.memfd_noexec forbids programs in memory
	}
	m := os.NewFile(uintptr(fd), "pfd")
	// Copy by read and write: pfd's sandbox permits no system call that copies.
	_, err = io.Copy(struct{ io.Writer }{m}, io.NewSectionReader(exe, 0, 1<<62))
	if err == nil {
		err = m.Chmod(0o555)
	}
	if err == nil {
		const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		_ = m.Close()
		return nil, fmt.Errorf("a copy of our own program: %w", limits.Explain(err))
	}
	return m, nil
}
