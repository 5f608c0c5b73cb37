// Package fault serves the page faults of one node (spec/faultpath.md): the interrupt half
// acknowledges the interrupt and wakes the page-in half, which drains the FIFOs, merges the
// faults, pages in, and asks the senders to retransmit their blocks.
//
//	vector 0, 1 ─▶ Interrupt ─▶ Post ─▶ drain ─▶ merge ─▶ space.Machine ─▶ RAPF
//	                                              └─▶ Delegate.Ask (touch)
//
// Everything except the page-in itself, which is the machine's, runs on the goroutine that owns the
// windows (device.Bus), including every method of Driver; there are no locks. A fault does not allocate once the tables
// of its slot have grown.
//
// A round is one run of the page-in half; it drains at most roundEntries of each FIFO. Its
// entries become blocks (source, transaction), each with the pages that it waits for, and spans
// of pages to page in. A slot has at most two calls in flight: one for new faults, in slices of
// up to inlinePages, and one for the pages that a policy adds, in longer slices, concurrently and
// while data already flows. A page in a span that is queued or in flight is not requested twice:
// its block waits. When a block waits for nothing more, exactly one RAPF is sent.
//
// No step here is the last resort: a dropped entry, a refused RAPF or an unsent message is
// counted, and the sender's guard time-out recovers the block.
//
// docs/papers.md lists the papers that comments cite by number.
package fault
