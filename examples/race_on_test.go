//go:build race

package examples

// raced says that the race detector is in this program, which makes Go code some times as slow.
const raced = true
