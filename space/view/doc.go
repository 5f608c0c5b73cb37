// Package view accesses memory that a process shares with pfd through a mapping in pfd, without
// system calls.
//
// Only explicit calls make pages present in the mapping (uffd.Entries). Enter enters pages that
// are present in the process's page table, and Look those that the file has. PageIn fills pages
// that nobody has touched, through the userfaultfd that came with the memory, and enters them.
// The kernel takes a page out when it swaps the page out or the page is punched out of its file.
//
// So a page that can be touched is the file's present page, and a touch of any other page is a
// miss that pages nothing in. A miss returns at once, except for a page that is being punched
// out: there the touch sleeps until that is done. So Has, ReadV, WriteV and WriteWords may sleep,
// and the runtime cannot take the processor from the goroutine meanwhile. A miss that nothing
// fills is handled as in all other memory, through the process's own page table (package proc). A
// View is to that page table what a TLB is, and the kernel invalidates it.
//
// The rights that count are those at the time of sharing, as with a device that has its own
// tables (package shadow): a View does not learn of a later mprotect or munmap.
//
// docs/papers.md lists the papers that comments cite by number.
package view
