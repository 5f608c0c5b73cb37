// Package faulttest is a node made of registers only, for tests of the driver
// without an emulated SoC: the page-fault FIFOs with their reading rules, the
// fault registers, the latched interrupt causes and the packetizers behave as
// spec/hardware.md has them, everything else keeps what was written. It records
// accesses, messages and calls, and injects errors. Nothing in it runs by itself:
// Node.Run delivers vectors, posted functions and calls until nothing is left, so
// a test decides what happens between two of them.
package faulttest
