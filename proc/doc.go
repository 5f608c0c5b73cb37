// Package proc is a process of this machine as its user's rights let it be
// touched: which of its pages are there (pagemap), which memory it has mapped
// (PROCMAP_QUERY, or /proc/PID/maps on kernels before 6.11), and its bytes
// (process_vm_readv and process_vm_writev). It is the memory and the page tables
// that the emulated SMMU and PLDMA of an SVA deployment see (spec/faultpath.md, "The walk of the SVA deployment").
//
// The memory is named by a keeper and never by the process's own number: a task
// that shares the address space, sleeps and never executes another program
// (package internal/keeper). Neither the new image of an exec nor a process that
// got the same pid can be read or written.
//
// The kernel judges the right to each page when the bytes move, by the rights of
// whoever calls. What a Walk says is only which pages are there; it holds when it
// says it and not longer. Three things are kept between walks that cannot harm:
// which copy-on-write pages were reported already (a page reported too seldom is
// copied by the kernel while the data moves), what kind of mapping was looked
// up last, and for the walk that follows a page-in what pagemap said after it (a
// page that went since is brought in by the kernel while the data moves).
package proc
