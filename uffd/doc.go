// Package uffd makes userfaultfds and serves what they tell: pages of memory
// that was registered and has never been there. A process makes and registers a
// descriptor and hands it over; whoever holds it fills pages in, ahead of a device's
// access, without entering the process's address space (Region, Holes). Entries are
// mappings of shared memory into which pages come by their holder alone. Nothing is
// known here of devices or processes.
//
// Event features are asked for by Open(true) alone: with them the application's
// madvise, munmap and mremap wait for the server.
package uffd
