// Package mediate drives nodes that lie behind something slower than a function
// call: PCI functions whose registers are read and written by messages (or by
// loads and stores of a real device), whose interrupts are eventfds, and whose
// memory is what was mapped for DMA.
//
// One goroutine owns all nodes of a Machine: it serves the vectors, posted
// functions and the processes' pages. Processes never see the device. What they
// publish in their pages is carried over: a descriptor is copied once into btcm
// and rung, a message goes out by the process's own packetizer, and what the
// firmware writes into btcm comes back into the pages. So nothing that a process
// writes reaches a register unchecked.
//
// A node whose device goes is down: its windows fail with device.ErrGone, Serve
// returns that, and Reconnect brings it back when there is a device again.
package mediate
