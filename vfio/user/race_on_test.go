//go:build race

package user

// returned is like that without the race detector, whose own memory of the process stays, MiB.
const returned = 1 << 10
