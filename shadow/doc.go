// Package shadow gives a device without page tables of the processes' own (CAPS
// without SVA) tables that say the same: VMSAv8-64 tables, 4 KiB granule, in
// memory that the device reads by DMA, one address space a protection domain.
//
// A process shares memory as a memfd. Nothing of it is in the tables at first;
// a page-in makes a page present, maps it for DMA where it is not mapped yet,
// and writes its entry. What is mapped at one time is bounded (the window): the
// least recently used piece goes first, its entries cleared, the device's TLB
// invalidated and its accesses in flight waited for, and only then the mapping
// taken away. So where mapping pins memory, as the kernel's VFIO does, the
// window is what is pinned.
//
// Recently used is what was shared out, faulted in or announced by a transfer
// (Used): the device's own accesses leave no mark.
package shadow
