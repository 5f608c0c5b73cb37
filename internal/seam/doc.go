// Package seam stands between a program and the kernel: it has system calls of a
// process fail that it started, one at a time, without the program's doing. It is
// for the sweep of package internal/hostile, which sees that what pfd promises
// holds then.
//
// The kernel asks before each call that is listed in Calls (seccomp(2),
// SECCOMP_RET_USER_NOTIF), and the answer is to go on, or an error. So no call of
// the program's is left out, whoever in it makes it: pfd, package net or the Go
// runtime. Not listed is what cannot fail in a way that matters (close, munmap of
// whole mappings, what only asks for numbers), and what the runtime makes for
// itself and takes no error from (memory, threads, signals, futex, its poller).
package seam
