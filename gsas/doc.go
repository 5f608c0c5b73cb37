// Package gsas gives the threads of several processes, on all nodes, one address space of words that
// they read, write and change atomically (003 §2; docs/gsas.md). Its pages are absent until they are
// used, may be swapped out, and are never pinned.
//
// A Thread begins a tree, or joins one by its token; only the threads of a tree access its pages. They
// live as long as the tree has a thread:
//
//	ep, err := rdma.Attach(ctx, rdma.Options{Threads: true})
//	t, err := gsas.NewThread(ep)              // in another process: gsas.Join(ep, token)
//	a, err := t.Alloc(ctx, t.Node(), 1, 0)    // a page of this node
//	old, err := t.FetchAdd(ctx, a, 1)
//
// An operation is done once or, if its error says so, not at all. One that was sent, and for which no
// answer comes, may have been done: its error matches ErrGone or ctx's.
//
// docs/papers.md lists the papers that comments cite by number.
package gsas
