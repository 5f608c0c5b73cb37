// Package emu is the live machine: it drives the emulated nodes of package soc
// with real time, real processes and their memory, in pfd's own process.
//
// One engine goroutine owns all nodes and, between two steps, the driver
// (device.Bus): every register, machine and piece of driver state has one owner
// and needs no lock. Memory that a process shares is reached by pfd's own mapping of it
// (package view). Calls that may sleep in the kernel (walks, moves, page-in)
// are made in one of three ways: by the process's own helper (package memport);
// here, under a lease; or apart, on another thread. docs/architecture.md, "The
// engine", says when, and in which order the engine works.
//
// docs/papers.md has the papers that comments cite by number.
package emu
