// Package sim runs the machines of package soc and the driver of package fault under a
// simulated clock, with simulated memory, links and bus. All randomness comes from one seed:
// the same seed produces the same run, to the byte.
//
// docs/papers.md lists the papers that comments cite by number.
package sim
