// Package examples holds clients of pfd in other languages; its tests build them
// and run them against a pfd.
//
//   - c/exanet.c is written against docs/attach.md alone.
package examples
