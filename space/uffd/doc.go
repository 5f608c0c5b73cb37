// Package uffd creates userfaultfds and serves their events: accesses to registered pages that
// were never present. A process creates and registers a descriptor and sends it; its holder fills
// pages ahead of a device's access, without entering the process's address space (Region, Holes).
// Entries are mappings of shared memory in which only their holder makes pages present. The
// package knows no devices and no processes.
//
// Only Open(true) asks for event features: with them the application's madvise, munmap and mremap
// wait for the server.
package uffd
