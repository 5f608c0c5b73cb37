// Package memport reaches the memory of a process through a helper of that
// process's own: a process that its library starts, with its user's rights and
// nobody else's (attach.HelperCommand). pfd asks by requests in shared memory;
// the helper walks, moves bytes and pages in with packages proc and gup, and
// answers there. So the kernel judges every access by the rights of the process's
// user, pfd needs no right over anybody, and what hangs, hangs in the helper.
//
// A Port is pfd's side and Serve the helper's. Neither believes the other: pfd
// takes each answer once, cuts it to what was asked, and loses nothing but that
// process's transfers by a helper that lies, stops or dies.
//
// The port's memory (ours; docs/attach.md, "The memory helper") is a header of
// words, sixteen requests, and 256 KiB of data for each.
package memport
