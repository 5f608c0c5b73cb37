// Package trace is what pfd shows of its faults to whoever looks from outside: the
// record, a log of records, and the probe point at which batches of them can be
// read. Where nobody looks a record is not even made; a batch that is shown costs a
// call of an empty function, and the uprobe where one is attached there.
//
// The record is an interface between programs that were not built together. It has
// a version, and docs/tracing.md describes it; trace/probe reads it.
package trace
