// Package scenario runs simulations that files describe: nodes and their network, transfers between
// them, and faults that happen. It checks every transfer's bytes, and finds the smallest part of a scenario
// that still fails. docs/simulator.md describes the files.
package scenario
