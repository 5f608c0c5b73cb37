// Package memport accesses the memory of a process through a helper: a process that the process's
// library starts, with only its user's rights (attach.HelperCommand). pfd writes requests to
// shared memory; the helper walks, moves bytes and pages in with packages proc and gup, and
// writes its answers there. So the kernel checks every access with the rights of the process's
// user, pfd needs no right over any process, and only the helper can hang.
//
// A Port is pfd's side and Serve the helper's. Neither trusts the other: pfd reads each answer
// once and limits it to the request. A helper that lies, stops or dies fails only that process's
// transfers.
//
// The port's memory (docs/attach.md, "The memory helper"; defined by this project) is a header of
// words, sixteen requests, and 256 KiB of data for each.
package memport
