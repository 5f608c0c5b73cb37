// Package user is the vfio-user protocol: a PCI device in a process of its own,
// reached over a UNIX socket. It holds the codec of every message, a server
// that turns any Device into a PCI device which QEMU can attach, and a client.
// It knows nothing of what the device is.
//
// The normative text is QEMU's docs/interop/vfio-user.rst, cited here as "spec"
// with the section's name. Flags and structures that it takes over from the
// kernel are cited as "linux/vfio.h".
//
// All integers of messages are in the byte order of the host (spec, "Protocol
// Specification"); what is read from a BAR or from configuration space is
// little-endian, as on PCI.
//
// # Threads
//
// The server calls the Device on one goroutine at a time, chosen by Config.Run
// and Config.Inline. Nothing else of the embedding program is called. DMA and
// Server.Interrupt may be used from any goroutine.
//
// # Trust
//
// The peer is hostile to both sides: a request is checked whole before anything
// is done; a refused one costs its sender an error reply and closes the
// descriptors it brought; a stream that cannot be followed any more is closed.
package user
