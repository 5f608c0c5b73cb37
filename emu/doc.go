// Package emu is the live machine: it drives the emulated nodes of package soc with real time, real
// processes and their memory, in pfd's own process.
//
// One engine goroutine owns all nodes and, between two steps, the driver (device.Bus): every register,
// machine and piece of driver state has one owner and needs no lock. Memory that a process shares is
// accessed in pfd's own mapping of it (package view). Calls that may sleep in the kernel (walks,
// moves, page-ins) are made in one of four ways: by the process's own helper (package memport); by the
// process itself, which is asked; here, under a lease; or apart, on another thread. docs/architecture.md, "The engine", says when, and in
// which order the engine works.
//
// The files of the package depend on each other in one direction only. From the bottom up: the types,
// with those of a call, a slot and the Engine (config, clock, queue, node, state), the records of refused
// blocks (trace), what a node does with one event (step, frames), how a call is made and where (call,
// apart, slow, budget, advance), the processes and their actions (processes, actions), leases (lease),
// the loop with the supervisor of leases (pass, loop), and what the package exports (bus, engine).
//
// docs/papers.md lists the papers that comments cite by number.
package emu
