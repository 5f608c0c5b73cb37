// Package shadow gives a device without page tables of the processes' own (CAPS
// without SVA) tables that say the same: VMSAv8-64 tables, 4 KiB granule, in
// memory that the device reads by DMA, one address space a protection domain.
//
// A process shares memory as a memfd. Nothing of it is in the tables at first; a
// page-in makes pages present, maps those for DMA that are not mapped yet, and no
// others, and writes their entries. What is mapped at one time is bounded (the
// window). So where mapping pins memory, as the kernel's VFIO does, the window and
// the tables are what is pinned; Bound gives their sum.
//
// Each 64 KiB of shared memory have a place of as many DMA addresses while pages of
// them are mapped. A place has one of these states, and no other order:
//
//	vacant ─▶ mapping ─▶ ready ─▶ leaving ─▶ vacant
//	            ▲          │
//	            └──────────┘  more pages
//
// mapping: pages are made present, then mapped, then entered. leaving: the entries
// are cleared, the device's TLB is invalidated, its accesses in flight are over, and
// only then one call unmaps all of the place. Who moves a place out of ready owns it
// until it is ready or vacant. The lock of a Memory is never held in a call of the
// device or the kernel, so no slot waits for a map, an unmap or an invalidation of
// another.
//
// What goes first is the place used longest ago of the slot that has most bytes; where
// the device has room for no more files, a file of the slot that has most files. Used is
// what was faulted in or announced by a transfer (Used): the device's own accesses
// leave no mark.
package shadow
