// Package shadow builds page tables for a device that cannot use the processes' own (CAPS without
// SVA). They are VMSAv8-64 tables with a 4 KiB granule, in memory that the device reads by DMA,
// with one address space for each protection domain.
//
// A process shares memory as a memfd. At first the tables have no entry for it. A page-in makes
// pages present, maps those for DMA that are not mapped yet, and no others, and writes their
// entries. The amount mapped at one time is bounded (the window). So where mapping pins memory,
// as with the kernel's VFIO, only the window and the tables are pinned; Bound returns their sum.
//
// Each 64 KiB of shared memory has a place of as many DMA addresses while any of its pages is
// mapped. A place is in one of these states, and changes only in this order:
//
//	vacant ─▶ mapping ─▶ ready ─▶ leaving ─▶ vacant
//	            ▲          │
//	            └──────────┘  more pages
//
// mapping: pages are made present, then mapped, then entered. leaving: the entries are cleared,
// the device's TLB is invalidated, accesses in flight have ended, and only then one call unmaps
// the whole place. The goroutine that moves a place out of ready owns it until it is ready or
// vacant. The lock of a Memory is never held during a call of the device or the kernel, so no
// slot waits for a map, an unmap or an invalidation of another slot.
//
// An eviction takes the least recently used place of the slot that has most bytes. If the device
// has no room for another file, it evicts a file of the slot that has most files. A page counts
// as used when it is faulted in or when a transfer announces it (Used): the device's own accesses
// are not visible.
package shadow
