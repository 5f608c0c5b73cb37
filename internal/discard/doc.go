// Package discard discards pages of memory files from another process. fallocate(2) waits for the file's inode
// lock, and no signal ends that wait, not even SIGKILL. A process that can write a file can keep a write
// from ending, by a source whose page faults nobody serves, and so holds the lock for as long as it
// likes. A thread of the other process then waits, and this process can end.
package discard
