// Package faulttest is a node made only of registers, for tests of the driver without an emulated
// SoC. The page-fault FIFOs with their reading rules, the fault registers, the latched interrupt
// causes and the packetizers behave as in spec/hardware.md; all other registers keep what was
// written. It records accesses, messages and calls, and injects errors. Nothing runs by itself:
// Node.Run delivers vectors, posted functions and calls until none is left, so that a test
// decides what happens between two of them.
package faulttest
