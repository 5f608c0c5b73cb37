// Package attach is the attachment protocol between pfd and the processes that
// use it: the sealed memfd of four pages that both sides map, and the messages
// on pfd's SOCK_SEQPACKET socket that hand it over (docs/attach.md describes
// both for other languages).
//
// Both sides use this package: rdma dials, maps and rings; the daemon serves,
// makes the memory and ends attachments; the engine takes doorbells and
// packetizer sends from the pages and publishes completions in them.
//
// Every word of the pages may be scribbled on by the process at any time. The
// methods of Pages therefore use the page's words as values only: none of them
// indexes, sizes or waits by what it reads, so that no content of the pages can
// make pfd crash, block or reach outside of them, and none of them allocates.
package attach
