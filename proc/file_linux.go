package proc

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// InFile tells whether the file behind the mapping of va is long enough for va's
// page, where a page cannot be had: nil where it is, or where there is no file
// with a length. ErrPastEnd: the file ends before; ErrUnknown: pfd may not look,
// which takes a capability (proc(5), map_files); of huge pages and secret memory it is
// nil then. Other errors: ErrUnmapped,
// ErrGone, ErrClosed, or an errno. It is for the path of a failure.
func (p *Process) InFile(va device.VA) error {
	m, err := p.Mapping(va)
	if err != nil || !m.File {
		return err
	}
	if !p.enter() {
		return &Error{"file", p.pid, va, ErrClosed}
	}
	defer p.leave()
	var st unix.Stat_t
	err = unix.Fstatat(p.dir, fmt.Sprintf("map_files/%x-%x", uint64(m.Start), uint64(m.End)), &st, 0)
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOENT):
		// ENOENT: a kernel without map_files, or a mapping that has changed.
		if unlimited(p.maps, va) {
			return nil
		}
		return &Error{"file", p.pid, va, ErrUnknown}
	case err != nil:
		return p.fail("file", va, err)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil
	}
	// The last page of a file is there as a whole.
	at := m.Offset + uint64(va.Page()-m.Start)
	if at >= uint64(max(st.Size, 0)) {
		return &Error{"file", p.pid, va, ErrPastEnd}
	}
	return nil
}
