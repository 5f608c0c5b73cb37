// Package proc is a process of this machine, as the rights of its user permit access to it: its
// resident pages (pagemap), its mappings (PROCMAP_QUERY, or /proc/PID/maps on kernels before
// 6.11) and its bytes (process_vm_readv and process_vm_writev). It is the memory and the page
// tables that the emulated SMMU and PLDMA of an SVA deployment see (spec/faultpath.md, "The walk
// of the SVA deployment").
//
// The memory is named by a keeper and never by the process's own pid. A keeper is a task that
// shares the address space, sleeps and never executes another program (package internal/keeper).
// So neither the new image of an exec nor a process that reuses the pid can be read or written.
//
// The kernel checks the right to each page when the bytes move, with the caller's rights. A Walk
// reports only which pages were resident when it ran. A Process keeps three things between walks,
// and a stale one is harmless: the copy-on-write pages that it has reported (a page that is not
// reported again is copied by the kernel during the move), the kind of the mapping that was
// looked up last, and, for the walk that follows a page-in, the page's pagemap entry after it (a
// page that was evicted since is paged in by the kernel during the move).
package proc
