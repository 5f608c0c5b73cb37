package proc

// MaxPages is how many pages one Walk covers: one bit each, 256 KiB.
const MaxPages = 64

// Walk is the result of a walk, bit i for page i. A page has no bit where an access succeeds, and
// at most one.
type Walk struct {
	Absent uint64 // no mapping, or not present: no translation (FSR.TF)
	Denied uint64 // the mapping forbids it, or the page must be copied first: no permission (FSR.PF)
	Guard  uint64 // of the absent pages, those that are guard pages (MADV_GUARD_INSTALL)

	// Only in tables that a device's driver has written (package smmu). A process's own page
	// tables are always readable, and the kernel maintains their access flags.
	Unused   uint64 // the access flag is clear (FSR.AFF)
	External uint64 // the tables cannot be read (FSR.EF)
}

// Entry is one page's entry in /proc/PID/pagemap
// (Documentation/admin-guide/mm/pagemap.rst; bit 58 since Linux 6.15).
type Entry uint64

// Bits of an Entry.
const (
	entryExclusive = 1 << 56 // mapped exactly once
	entryGuard     = 1 << 58 // MADV_GUARD_INSTALL
	entryFile      = 1 << 61 // of a file, or shared anonymous
	entrySwap      = 1 << 62
	entryPresent   = 1 << 63
)

// Present reports whether the page is in memory and mapped.
func (e Entry) Present() bool { return e&entryPresent != 0 }

// Swapped reports whether the page is in swap space, so that paging it in may need a device.
func (e Entry) Swapped() bool { return e&entrySwap != 0 }

// Guard reports whether the process has made the page a guard page, which cannot be paged in.
func (e Entry) Guard() bool { return e&entryGuard != 0 }

// Private reports whether the page is present and exclusive: a private mapping's page that can be
// written without a fault. The zero page, a page of the file behind the mapping and a page shared
// with a forked process are not (spec/faultpath.md, "The walk of the SVA deployment").
func (e Entry) Private() bool {
	return e&(entryPresent|entryFile|entryExclusive) == entryPresent|entryExclusive
}

// File reports whether the page belongs to a file or is shared anonymous memory. Of a private
// mapping it is a page that has not been copied yet.
func (e Entry) File() bool { return e&entryFile != 0 }
