package proc

// MaxPages is how many pages one Walk looks at: a bit each, 256 KiB.
const MaxPages = 64

// Walk is what the walk found, bit i for page i. A page is in neither where an
// access goes through, and never in both.
type Walk struct {
	Absent uint64 // no mapping, or not present: no translation (FSR.TF)
	Denied uint64 // the mapping forbids it, or the page must be copied first: no permission (FSR.PF)

	// Of tables that a device's driver has written (package smmu): a process's own
	// page tables are always there, and the kernel keeps their access flags.
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

// Present tells that the page is in memory and mapped.
func (e Entry) Present() bool { return e&entryPresent != 0 }

// Swapped tells that the page is in swap space, so that bringing it in may take
// a device.
func (e Entry) Swapped() bool { return e&entrySwap != 0 }

// Guard tells that the process has made the page a guard page, which nothing
// brings in.
func (e Entry) Guard() bool { return e&entryGuard != 0 }

// Private tells that the page is present and belongs to nobody else: a private
// mapping's page that can be written without a fault. The zero page, a page of
// the file behind the mapping and a page shared with a forked process are not
// (spec/faultpath.md, "The walk of the SVA deployment").
func (e Entry) Private() bool {
	return e&(entryPresent|entryFile|entryExclusive) == entryPresent|entryExclusive
}

// File tells that the page belongs to a file or is shared anonymous memory: a
// private mapping's page before its copy.
func (e Entry) File() bool { return e&entryFile != 0 }
