// Package user implements the vfio-user protocol: a PCI device in a process of its own, reached
// over a UNIX socket. It holds the codec of every message, a client, and a server that turns any
// Device into a PCI device which QEMU can attach. It does not depend on what the device does.
//
// The normative text is QEMU's docs/interop/vfio-user.rst, cited here as "spec" with the
// section's name. Flags and structures that it takes over from the kernel are cited as
// "linux/vfio.h".
//
// All integers of messages are in the byte order of the host (spec, "Protocol Specification").
// The contents of a BAR and of configuration space are little-endian, as on PCI.
//
// # Threads
//
// The server calls the Device on one goroutine at a time, chosen by Config.Run.
// It calls nothing else of the embedding program. DMA and Server.Interrupt are safe for
// concurrent use.
//
// # Trust
//
// Each side treats its peer as hostile. It checks a request whole before it acts on it. It
// answers an invalid request with an error and closes the descriptors that came with it. It
// closes the connection when it can no longer follow the stream.
package user
