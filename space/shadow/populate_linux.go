package shadow

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
)

// populate makes pages of our own mapping of a share present, and thereby those of every process
// that maps the file. It changes no byte. Only the first page decides about success.
func populate(b []byte, write bool) gup.Result {
	advice := unix.MADV_POPULATE_READ
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	pages := len(b) >> device.PageShift
	res := gup.Result{}
	if err := advise(b, advice); err == nil {
		res.Resident = ^uint64(0) >> (64 - uint(pages))
		res.New = res.Resident
		return res
	}
	// One page failed: bring in those before it.
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
	res.New = res.Resident
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
