//go:build !race

package user

// returned is how much larger than before a server may be when a client has gone, MiB.
const returned = 16
