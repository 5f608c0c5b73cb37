// Package uffd makes userfaultfds and serves what they tell: pages of memory
// that was registered and has never been there. A process makes and registers a
// descriptor for each range and hands it over; whoever holds it fills pages in,
// for a device ahead of its access or for a thread that waits. Nothing is known
// here of devices or processes.
//
// Only missing pages are served. No event features are asked for: with them the
// application's madvise, munmap and mremap would wait for the server.
package uffd
