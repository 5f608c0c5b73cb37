// Package mediate drives nodes that are slower to reach than by a function call. They are PCI
// functions whose registers are accessed by messages, or by loads and stores of a real device.
// Their interrupts are eventfds, and they access the memory that was mapped for DMA.
//
// One goroutine owns all nodes of a Machine: it serves the vectors, posted functions and the
// processes' pages. Processes never access the device. The owner forwards what they publish in
// their pages: it copies a descriptor once into btcm and rings the doorbell, sends a message by
// the process's own packetizer, and copies results that the firmware writes into btcm back into
// the pages. So nothing that a process writes reaches a register unchecked.
//
// A node whose device is gone is down: its windows fail with device.ErrGone and Serve returns
// that. Reconnect waits for a device and brings the node back.
package mediate
