package view

import "github.com/exanet/pfd/device"

// Sizes. Values below are defined by this project.
const (
	// MaxShares and MaxBytes bound the memory that a View maps of one process: the mapping's page
	// tables are pfd's memory.
	MaxShares = 4096
	MaxBytes  = 16 << 30

	// For fewPages or less, Window covers the windowPages around them, as the kernel maps a
	// file's neighbouring pages (fault_around_bytes, 64 KiB).
	fewPages    = 2
	windowPages = 16

	maxPages = 64 // of one call: one bit each

	// tablePages is how many pages one page table maps (4 KiB of 8-byte entries).
	tablePages = device.PageSize / 8
)

// Folios is a page-in of shared memory that comes in by folios. Each map has a bit for each of the
// pages from VA on.
type Folios struct {
	VA    device.VA
	Pages int    // those of whole folios, 1 to 64
	Asked uint64 // the pages that are needed
	There uint64 // those that the file had before
	// Touch are absent pages that are needed, the first of each folio: a touch of them should bring
	// in all folios.
	Touch uint64

	own uint64 // pages that no other page-in is bringing in
}
