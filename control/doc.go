// Package control is the control interface of pfd: the JSON types that its
// endpoints answer with, and a client for them.
//
// The interface is HTTP with JSON on a unix socket (spec/api.md, "Daemon"):
//
//	curl --unix-socket /run/exanet/pfd.sock http://pfd/v1/status
//
// Every answer is an object with the key "version", which is Version here.
// Within one version keys are only added: a reader ignores what it does not
// know. Names are in snake case; a unit stands at the end of a name (_ns,
// _us, _bytes), and counters end in _total. Addresses and register values are
// strings in hexadecimal (Hex), since a JSON number holds 53 bits only.
//
// The peer's credentials decide what an answer holds: root and the uid of pfd
// see everything; another uid sees the domains, channels, banks, FIFO entries
// and faults that are its own, the status, the nodes and the counters, and is
// refused the registers. Its faults it sees also after their process has ended,
// as long as pfd remembers that (the last 32 attachments of each slot).
//
// docs/papers.md has the papers that comments cite by number.
package control
