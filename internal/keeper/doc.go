// Package keeper creates a keeper: a task that shares the address space of a process (clone(2),
// CLONE_VM), sleeps, and never executes another program. A process's own pid is not a stable
// name of its memory: the process may execute another program between any two system calls of a
// process that uses the pid. The keeper's pid names one address space for as long as it is used
// (docs/attach.md, "The keeper").
//
// A keeper can do nothing: all signals are blocked, all its descriptors but one are closed, and
// its own seccomp filter allows only exit and the wait for a lock. This matters because a
// keeper shares the process's memory and keeps the credentials that the process had at its
// creation. It ends when the process ends, executes another program, or closes it, even if
// children of the process live on.
package keeper
