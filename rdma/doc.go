// Package rdma is the library of processes that use pfd: remote DMA on virtual
// addresses into memory that is neither registered nor pinned, and that may be
// absent when the data arrives (spec/api.md, Library; 001 §2.3.3.2).
//
// A process attaches to one node of a pfd, exports its own memory as a Remote, passes that to its
// peer by any means, and writes to the Remotes that it receives:
//
//	ep, err := rdma.Attach(ctx, rdma.Options{Node: 0, Group: "app"})
//	t, err := ep.Write(ctx, rdma.WriteRequest{Src: data, Dst: remote})
//	err = t.Wait(ctx)
//
// # What completion promises
//
// When a transfer has finished (Status Finished, Wait returns nil):
//
//   - all its bytes, and the completion words if any were requested, are in the target's memory;
//   - the source may be changed or freed. Until then the device may read the source again,
//     because a block that met a page fault is retransmitted;
//   - this transfer does not write to the target any more.
//
// When a transfer has failed, any part of the destination may hold the new bytes and the rest the
// old ones; the completion words were not written. The device does not read the source any more,
// which may be reused. For StatusGone alone that does not hold if the daemon itself died or was
// lost; with an emulated device, the daemon's death ends all accesses too.
//
// The destination differs: blocks of a failed transfer that had left the initiator's node may
// still arrive, for as long as a page of the target delays them. A target that needs its buffer
// for other data closes its endpoint (Close returns when no access is in flight) or uses another
// buffer.
//
// Abort only requests the end. The device may use the source until the transfer is final, which is
// then StatusAborted or, if the abort came too late, complete.
//
// # Order
//
// Within a transfer bytes arrive in any order. The first completion word is written after all
// bytes, the last one after the first: a target that sees the last word sees all bytes
// (WaitNotification). Two transfers are not ordered, even between the same two buffers: to order
// them, wait for the first before writing the second.
//
// The transfer sees everything that the process wrote before it called Write. Later writes to the
// source may or may not be sent.
//
// # Rights
//
// A process reaches the memory of those that admit it (Options.AcceptGroup, Options.Accept): all of
// it. A Window opens a range of a process's memory to any other, with the rights that its owner
// chooses, until its owner closes it.
//
// # Faults
//
// No call pins a page. A page that is absent at either end delays only its own transfer. With
// MethodTouch and MethodPopulate the library's own goroutine pages in when pfd asks it to; it runs
// from Attach to Close. A destination that is unmapped or not writable fails the transfer with StatusDecode; the
// target process continues. Memory that the kernel does not page in fails it with ErrMemory
// (status 11) after a second or more of equal failures; the node's fault log has the reason.
// Memory that does not answer at all (a userfaultfd of the target that nobody serves) delays the
// blocks that need it, and no other page.
//
// Protection keys (pkeys(7)) belong to a thread, and no thread of the process takes part in a
// transfer. So a transfer ignores the key of a page that is present or that methods gup and uffd
// page in. Methods touch and populate page in with the rights of the library's thread, which by
// default has none to a key that was created later: status 2 or 11. To protect memory from
// transfers use mprotect. A transfer reaches only the mapped part of a stack: an access from
// outside does not make it grow.
//
// # Waiting
//
// Poll loads the shared page (twice to detect a paused transfer) and makes no system call. Wait
// spins for SpinTime, then sleeps in the kernel until pfd wakes it.
//
// A Queue collects transfers as they become final, for callers with many in flight:
//
//	q := ep.NewQueue()
//	_, err := ep.Write(ctx, rdma.WriteRequest{Src: data, Dst: remote, Queue: q, ID: 1})
//	for t, err := range q.Finished(ctx) { … }
//
// A Ring waits in Go's poller, for words that peers write or for messages, and costs no thread.
//
// Endpoint, Transfer and Queue are safe for concurrent use.
//
// # Fork
//
// An endpoint belongs to one process. A forked child (os/exec's, or one of C code) runs no Go code
// before it executes another program, and so cannot use the endpoint; the exec closes every
// descriptor of it (O_CLOEXEC). libexanet, whose callers may go on in a child, refuses each call
// there.
//
// docs/papers.md lists the papers that comments cite by number.
package rdma
