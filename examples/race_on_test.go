//go:build race

package examples

// raced says that this program has the race detector, which makes Go code several times slower.
const raced = true
