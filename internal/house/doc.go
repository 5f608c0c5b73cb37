// Package house holds no code: its tests are the rules of this repository that
// no compiler and no linter knows. CONTRIBUTING.md lists them.
package house
