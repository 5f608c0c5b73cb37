package shadow

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
)

// populate makes pages of our own mapping of a share present, and so those of
// everybody who maps the file. It changes no byte. Only the first page decides.
func populate(b []byte, write bool) gup.Result {
	advice := unix.MADV_POPULATE_READ
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	pages := len(b) >> device.PageShift
	res := gup.Result{}
	if err := advise(b, advice); err == nil {
		res.Resident = ^uint64(0) >> (64 - uint(pages))
		return res
	}
	// Some page would not come: as far as they do.
	for i := range pages {
		err := advise(b[i<<device.PageShift:(i+1)<<device.PageShift], advice)
		if err != nil {
			if i == 0 {
				res.Err = fmt.Errorf("%w: %w", gup.ErrNotResident, err)
			}
			break
		}
		res.Resident |= 1 << i
	}
	return res
}

func advise(b []byte, advice int) error {
	for {
		err := unix.Madvise(b, advice)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
}

// resident tells which pages of our own mapping of a share are in memory, bit 0 of
// a byte a page.
func resident(b []byte) []byte {
	there := make([]byte, len(b)>>device.PageShift)
	if len(there) == 0 {
		return nil
	}
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(unsafe.Pointer(unsafe.SliceData(there))))
	if errno != 0 {
		return nil
	}
	return there
}
