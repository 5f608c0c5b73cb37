// Package emu is the live machine: it drives the emulated nodes of package soc
// with real time, real processes and their memory, in pfd's own process.
//
// One engine goroutine owns all nodes and, between two steps, the driver
// (device.Bus): every register, machine and piece of driver state has one owner
// and needs no lock. Calls that may sleep in the kernel (walks, moves, page-in)
// are made inline under a lease: if one lasts over 20 ms, a supervisor lets a new
// goroutine go on with the state, the domain in question is served by a worker
// of its own from then on, and the late caller touches nothing (design.md
// "Memory ports with leases"). So a process whose memory hangs costs itself
// only, and the usual case two atomics.
package emu
