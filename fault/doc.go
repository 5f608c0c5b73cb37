// Package fault serves the page faults of one node, as spec/faultpath.md has it:
// the interrupt half acknowledges and wakes, the page-in half drains the FIFOs,
// merges, pages in, and asks the senders to send their blocks again.
//
//	vector 0, 1 ─▶ Interrupt ─▶ Post ─▶ drain ─▶ merge ─▶ device.Call (Pager.PageIn) ─▶ RAPF
//	                                              └─▶ Delegate.Ask (touch)
//
// Everything but Pager.PageIn runs on the goroutine that owns the
// windows (device.Bus), and so does every method of Driver; there are no locks.
// A fault allocates nothing once the tables of its slot have grown.
//
// A round is what one run of the page-in half drains, at most roundEntries of
// each FIFO. Its entries become blocks (source, transaction), each with the
// pages that it waits for, and spans of pages to bring in. A slot has at
// most two Calls under way: one for new faults, in slices of up to inlinePages,
// and one for what a policy adds beyond, in longer slices, beside it and while
// data already flows. A
// page in a span that is queued or under way is not asked for twice: its block
// waits. When a block waits for nothing any more, exactly one RAPF goes out.
//
// Nothing here is the last resort: an entry dropped, a RAPF refused or a message
// not sent is counted, and the guard time-out of the sender recovers the block.
//
// docs/papers.md has the papers that comments cite by number.
package fault
