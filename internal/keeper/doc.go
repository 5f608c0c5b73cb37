// Package keeper makes the task by which a process's memory is named: it shares
// the address space of the process (clone(2), CLONE_VM), sleeps, and never
// executes another program. A pid names a process, and the process may execute
// another program between any two system calls of whoever reaches its memory by
// that pid. The pid of a keeper names one address space for as long as it is
// used (docs/attach.md, "The keeper").
//
// A keeper can do nothing: all signals are blocked, its descriptors are closed
// but one, and a seccomp filter of its own leaves it exit and the wait for a lock. That matters
// because it keeps the credentials that the process had when it was made, and
// shares its memory. It ends when the process ends, executes another program, or
// closes it, whatever children it has forked.
package keeper
