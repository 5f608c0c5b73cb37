// Package trace makes pfd's faults visible to external tracers: the record, a log of records,
// and the probe point where batches of them can be read. Without a tracer no record is made.
// Showing a batch costs a call of an empty function, plus the uprobe if one is attached.
//
// The record is an interface between programs that are built separately. It has a version and
// is described in docs/tracing.md; trace/probe reads it.
package trace
