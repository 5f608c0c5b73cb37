// Package sim drives the machines of package soc and the driver of package fault
// under a simulated clock, with memory, links and a driver's bus of its own. All
// chance comes from one seed: the same seed gives the same run, to the byte.
//
// docs/papers.md has the papers that comments cite by number.
package sim
