//go:build race

package workload

// raceFlags build programs as this test was built.
var raceFlags = []string{"-race"}
