package rdma

import (
	"errors"
	"fmt"
	"math/bits"
	"os"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/folios"
)

// ErrFolios says that memory comes in by single pages although folios were requested. The memory
// works, only slower.
var ErrFolios = errors.New("memory comes in by single pages, not by folios")

// Folio returns how many pages come in together at the first touch of one, as the first folio of
// the buffer did when it was allocated. If the buffer was allocated with AllocOptions.Folios and
// comes in by single pages, err says why; it matches ErrFolios.
//
// The kernel brings in the largest enabled folio that fits: the end of a buffer whose size is not a
// multiple of it comes in by smaller ones, as memory of which pages were discarded or that is
// fragmented does.
func (b *Buffer) Folio() (pages int, err error) { return b.folio, b.single }

// folioOf finds out how many pages of a new memfd come in together, and why not more than one. It
// touches the first page and discards what has come.
func folioOf(fd int, b []byte) (int, error) {
	if err := unix.Madvise(b, unix.MADV_HUGEPAGE); err != nil {
		return 1, fmt.Errorf("%w: this kernel has none (CONFIG_TRANSPARENT_HUGEPAGE): %w", ErrFolios, os.NewSyscallError("madvise MADV_HUGEPAGE", err))
	}
	err := os.NewSyscallError("madvise MADV_POPULATE_WRITE", unix.Madvise(b[:device.PageSize], unix.MADV_POPULATE_WRITE))
	hole := int64(0)
	if err == nil {
		hole, err = unix.Seek(fd, 0, unix.SEEK_HOLE)
	}
	if err = errors.Join(err, os.NewSyscallError("madvise MADV_REMOVE", unix.Madvise(b, unix.MADV_REMOVE))); err != nil {
		return 1, fmt.Errorf("%w: a touch of the memory: %w", ErrFolios, err)
	}
	if pages := int(hole) / device.PageSize; pages > 1 {
		return min(1<<(bits.Len(uint(pages))-1), attach.MaxFolio), nil
	}
	return 1, fmt.Errorf("%w: no folio that the kernel allows fits in shared memory of %d bytes (exanetctl doctor shows their sizes): "+
		"those of 64 KiB need Linux 6.11 and a setting, %s", ErrFolios, len(b), folios.SharedLine)
}

// single returns why no memory of this endpoint comes in by folios.
func (e *Endpoint) single() error {
	if e.welcome.Method == MethodUFFD {
		return fmt.Errorf("%w: method uffd fills single pages: attach with another method", ErrFolios)
	}
	return fmt.Errorf("%w: the device does not use the page tables of processes", ErrFolios)
}
