package workload

import (
	"cmp"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/folios"
	"github.com/exanet/pfd/internal/maybe"
	"github.com/exanet/pfd/rdma"
)

// Folio says how memory comes in for which folios were requested.
type Folio struct {
	// Pages is how many pages come in together at the first touch of one; 0 if folios were not
	// requested.
	Pages int `json:"pages,omitempty"`
	// Single says why single pages come in, and what to do about it.
	Single string `json:"single,omitempty"`
}

func folioOf(pages int, single error) Folio {
	f := Folio{Pages: pages}
	if single != nil {
		f.Single = single.Error()
	}
	return f
}

// Bytes returns how much comes in at the first touch; it is unknown if folios were not requested.
func (f Folio) Bytes() maybe.Number {
	if f.Pages == 0 {
		return maybe.Unknown()
	}
	return maybe.Number(f.Pages * pageSize)
}

// String describes it for a user.
func (f Folio) String() string {
	if f.Single != "" {
		return f.Single
	}
	return fmt.Sprintf("a touch brings in %d KiB", f.Pages*pageSize>>10)
}

// and returns the worse of two.
func (f Folio) and(g Folio) Folio {
	return Folio{min(f.Pages, g.Pages), cmp.Or(f.Single, g.Single)}
}

// hugePage is the size of the largest folio, in bytes.
const hugePage = 2 << 20

// privateFolio requests folios for new private memory and finds out what comes in at a touch. The
// memory stays absent.
func privateFolio(b []byte) (int, error) {
	if err := unix.Madvise(b, unix.MADV_HUGEPAGE); err != nil {
		return 1, fmt.Errorf("%w: this kernel has none (CONFIG_TRANSPARENT_HUGEPAGE): MADV_HUGEPAGE: %w", rdma.ErrFolios, err)
	}
	pages, err := openPagemap()
	if err != nil {
		return 1, err
	}
	err = unix.Madvise(b[:pageSize], unix.MADV_POPULATE_WRITE)
	n, e := pages.resident(b[:min(len(b), hugePage)])
	if err = errors.Join(err, e, pages.close(), unix.Madvise(b, unix.MADV_DONTNEED)); err != nil {
		return 1, fmt.Errorf("%w: a touch of the memory: %w", rdma.ErrFolios, err)
	}
	if n < 2 {
		return 1, fmt.Errorf("%w: no folio that the kernel allows fits in private memory of %d bytes (exanetctl doctor shows their sizes): those of 64 KiB need Linux 6.8 and a setting, %s", rdma.ErrFolios, len(b), folios.PrivateLine)
	}
	return n, nil
}

// firsts reports which transfers of a row are the first ones into a folio. All pages are absent
// before; parts are in the order of their transfers.
func (f Folio) firsts(parts []int, stride, size uint64) []bool {
	folio, in, list := uint64(f.Pages)*pageSize, make(map[uint64]bool), make([]bool, len(parts))
	for i, part := range parts {
		at := uint64(part) * stride
		for n := at / folio; n <= (at+size-1)/folio; n++ {
			list[i], in[n] = list[i] || !in[n], true
		}
	}
	return list
}

// ByFolio returns the latencies of the transfers that brought in a folio, and of those that found
// their folios present. Both are empty unless all pages of an end's memory were absent.
func (r *PerfResult) ByFolio() (first, present []int64) {
	for i, f := range r.firsts {
		if f {
			first = append(first, r.Latencies[i])
		} else {
			present = append(present, r.Latencies[i])
		}
	}
	return first, present
}
