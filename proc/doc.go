// Package proc is a process of this machine as pfd may touch it: which of its
// pages are there (pagemap), which memory it has mapped (PROCMAP_QUERY, or
// /proc/PID/maps on kernels before 6.11), and its bytes (the mem descriptor).
// It is the memory and the page tables that the emulated SMMU and PLDMA of an
// SVA deployment see (spec/faultpath.md, "The walk of the SVA deployment").
//
// A Process is held by descriptors and never by a number. They stay with the
// address space on which they were opened: after exec they answer ErrGone, or,
// where a helper made by clone(CLONE_VM) keeps the old address space alive, go
// on reaching the old one. Neither the new image of an exec nor a process that
// got the same pid can be read or written through them.
//
// What a Walk says holds when it says it and not longer: the process, its other
// threads and the kernel change mappings and residency at any time. So the walk
// asks the kernel anew for every block, and keeps nothing but two things that
// cannot harm: which copy-on-write pages it has already reported (a page
// reported too seldom is copied by the kernel while the data moves), and the
// mapping and pagemap entry behind the last faults (hints for package gup,
// which may only choose a range and name a kind by them).
package proc
