package proc

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// InFile returns nil if the file behind the mapping of va reaches va's page, or if there is no
// file with a length. It is slow and serves to explain a failure. It returns ErrPastEnd if the
// file ends before va. It returns ErrUnknown if the kernel does not let the caller look (proc(5),
// map_files, needs a capability) and the file has no name and is not open in the process; for
// huge pages and secret memory it returns nil then. Other errors are ErrUnmapped, ErrGone,
// ErrClosed, or an errno.
func (p *Process) InFile(va device.VA) error {
	m, err := p.Mapping(va)
	if err != nil || !m.File {
		return err
	}
	if !p.enter() {
		return &Error{"file", p.pid, va, ErrClosed}
	}
	defer p.leave()
	st, err := stat(p.dir, fmt.Sprintf("map_files/%x-%x", uint64(m.Start), uint64(m.End)))
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOENT):
		// ENOENT: a kernel without map_files, or a mapping that has changed.
		var ok bool
		f, known := fileAt(p.maps, va)
		if known && f.unlimited() {
			return nil
		}
		if st, ok = p.find(f); !known || !ok {
			return &Error{"file", p.pid, va, ErrUnknown}
		}
	case err != nil:
		return p.fail("file", va, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	// The last page of a file is mapped as a whole.
	at := m.Offset + uint64(va.Page()-m.Start)
	if at >= st.Size {
		return &Error{"file", p.pid, va, ErrPastEnd}
	}
	return nil
}

// stat reads a file's attributes without asking a file server, which may not answer (FUSE).
func stat(dir int, name string) (unix.Statx_t, error) {
	var st unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_SIZE|unix.STATX_INO, &st)
	return st, err
}

// mostFiles bounds how many open files of a process find looks at. Defined here.
const mostFiles = 256

// find looks for a mapped file by its name, then among the files that the process has open.
func (p *Process) find(f mappedFile) (unix.Statx_t, bool) {
	is := func(dir int, name string) (unix.Statx_t, bool) {
		st, err := stat(dir, name)
		return st, err == nil && st.Ino == f.inode && st.Dev_major == f.major && st.Dev_minor == f.minor
	}
	if strings.HasPrefix(f.name, "/") {
		if st, ok := is(p.dir, "root"+f.name); ok {
			return st, true
		}
	}
	dir, err := os.Open(fmt.Sprintf("/proc/%d/fd", p.pid))
	if err != nil {
		return unix.Statx_t{}, false
	}
	defer dir.Close()
	names, err := dir.Readdirnames(mostFiles)
	if err != nil {
		return unix.Statx_t{}, false
	}
	for _, name := range names {
		if st, ok := is(int(dir.Fd()), name); ok {
			return st, true
		}
	}
	return unix.Statx_t{}, false
}
