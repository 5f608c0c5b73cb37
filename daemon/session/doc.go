// Package session has the nodes of a pfd and the attachments of processes to them.
//
// A Host holds what all of them share: the machine behind device.Bus, the list of
// attachments, and the quotas. Each Node has a domain manager and a fault driver. All of a
// node's state belongs to the goroutine that owns its windows (device.Bus); others reach it
// by Host.Own and Host.Each, and get copies. The handle of a process (proc.Process) may be used on
// any goroutine.
//
// An attachment is a session with a few goroutines of its own. They wait for its socket, for its
// process and for the process's keeper, and otherwise sleep, so no client makes another one wait. The cost of a client is
// bounded: the time of a handshake, the number of handshakes a uid, the size of its messages, and
// the time that an answer waits for it to read.
package session
