// Package view reaches memory that a process shares with pfd through a mapping of pfd's
// own, without system calls.
//
// No page comes into the mapping by itself (uffd.Entries). Enter enters pages that the
// process's table has, Look those that the file has; PageIn fills what nobody has touched, by
// the userfaultfd that came with the memory, and enters it. The kernel takes a page out when
// it is swapped out, or punched out of its file. So a page that can be touched is the file's
// page at that moment, and one that cannot is a miss, without anything brought in: at once, but
// for a page that is being punched out, a touch of which sleeps until that is over. So Has, ReadV,
// WriteV and WriteWords are calls that may sleep, in which the runtime can't take the goroutine's
// processor away.
// What is missed, and nothing fills, goes the way of all other memory, by the process's own
// table (package proc). A View is thus to the process's table what a TLB is, and the kernel
// invalidates it.
//
// What the process may do with its memory counts when it shares it, as with a device that
// has tables of its own (package shadow): a View knows of no later mprotect or munmap.
//
// docs/papers.md has the papers that comments cite by number.
package view
