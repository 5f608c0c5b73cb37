//go:build race

package user

// returned is what the race detector's own memory of a process leaves of a test that
// compares the process with what it was, MiB.
const returned = 1 << 10
