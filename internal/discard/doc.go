// Package discard discards pages of files from another process. fallocate(2) waits for the file's inode
// lock, and no signal ends that wait, not even SIGKILL. Whoever can write a file can keep a write from
// ending, by a source whose page faults nobody serves, and so holds the lock for as long as he
// likes. What then stands still is a thread of the other process, and this one can end.
package discard
