// Package rdma is the library of processes that use pfd: remote DMA on virtual
// addresses into memory that is neither registered nor pinned, and that may be
// absent when the data arrives (spec/api.md, Library; 001 §2.3.3.2).
//
// A process attaches to one node of a pfd, exports memory of its own as a
// Remote, hands that to its peer by any way it likes, and writes to the
// Remotes that it was given:
//
//	ep, err := rdma.Attach(ctx, rdma.Options{Node: 0, Group: "app"})
//	t, err := ep.Write(ctx, rdma.WriteRequest{Src: data, Dst: remote})
//	err = t.Wait(ctx)
//
// # What completion promises
//
// When a transfer is finished (Status Finished, Wait returns nil):
//
//   - every byte of it is in the target's memory, and so are the completion
//     words if any were asked for;
//   - the source may be changed or freed. Not before: until a transfer is final
//     the device may read the source again, because a block that met a page
//     fault is sent again;
//   - the target is not written by this transfer any more.
//
// When a transfer has failed, any part of the destination may hold the new
// bytes and the rest the old ones; the completion words were not written. For
// every status but StatusGone the device does not read the source any more: it
// may be used again. StatusGone promises the same unless the daemon itself died
// or was lost; with an emulated device its death ends all accesses too.
//
// The destination is another matter: blocks of a failed transfer that had left
// the initiator's node may still arrive, for as long as a page of the target
// keeps them waiting. A target that wants its buffer for something else closes
// its endpoint (Close returns when no access is in flight), or takes another
// buffer.
//
// Abort asks; it does not end. The source is the device's until the transfer is
// final, which then is either StatusAborted or, where the abort came too late, a
// completion.
//
// # Order
//
// Within a transfer bytes arrive in any order. The first completion word is
// written after all bytes, the last after the first: a target that sees the
// last word sees everything (WaitNotification). Two transfers are not ordered,
// also between the same two buffers: whoever needs an order waits for the first
// before writing the second.
//
// Everything that the process wrote before calling Write is seen by the
// transfer. What it writes to the source later may or may not be sent.
//
// # Faults
//
// No call pins a page. A page that is absent at either end delays its transfer
// and nobody else's. With MethodTouch the library's own goroutine brings pages
// in when pfd asks it to; it runs from Attach to Close. A destination that is
// not mapped, or may not be written, fails the transfer with StatusDecode; the
// target process lives on. Memory that the kernel does not bring in fails it with
// ErrMemory (status 11), after a second or more of equal failures; the node's fault log has
// the reason. Memory that does not answer at all (a userfaultfd of the target's own
// that nobody serves) holds up the blocks that need it, and no other page.
//
// Protection keys (pkeys(7)) are a thread's own, and no thread of the process takes
// part in a transfer: pages that are there are read and written whatever their key
// says, and so are those that methods gup and uffd bring in; methods touch and
// populate bring pages in with the rights of the library's thread, which by default
// has none to a key that was made later: status 2 or 11. Use mprotect
// for what a transfer must not reach. Of a stack only what is mapped can be reached: an access
// from outside does not make it grow.
//
// # Waiting
//
// Poll is a load of the shared page (a second one tells a paused transfer), and
// never a system call. Wait spins for SpinTime, then sleeps in the kernel until
// pfd wakes it.
//
// A Queue collects transfers as they become final, for those who have many under way:
//
//	q := ep.NewQueue()
//	_, err := ep.Write(ctx, rdma.WriteRequest{Src: data, Dst: remote, Queue: q, ID: 1})
//	for t, err := range q.Finished(ctx) { … }
//
// All methods of Endpoint, Transfer and Queue may be called by any goroutine.
//
// # Fork
//
// An endpoint is its process's alone. The child of a fork (os/exec's, or one that C code makes) runs no
// Go code before it executes another program, and so cannot use it; every descriptor of an endpoint is
// closed by that (O_CLOEXEC). libexanet, whose callers may go on in a child, refuses each call there.
//
// docs/papers.md has the papers that comments cite by number.
package rdma
