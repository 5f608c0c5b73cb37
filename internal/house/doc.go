// Package house has no code. Its tests check the rules of this repository that no compiler and
// no linter checks. CONTRIBUTING.md lists them.
package house
