// Package attach is the attachment protocol between pfd and the processes that use it: the sealed
// memfd of four pages that both sides map, and the messages on pfd's SOCK_SEQPACKET socket that
// set it up (docs/attach.md describes both for other languages).
//
// Both sides use this package. rdma dials, maps and rings; the daemon serves, creates the memory
// and ends attachments; the engine reads doorbells and packetizer messages from the pages and
// publishes completions in them.
//
// The process may write anything to the pages at any time. So the methods of Pages use the pages'
// words only as values: they never index, size or wait by them, and never allocate. No content of
// the pages can make pfd crash, block or access memory outside of them.
package attach
