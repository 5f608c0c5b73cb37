// Package control is the control interface of pfd: the JSON types of its endpoints' answers, and a
// client for them.
//
// The interface is HTTP with JSON on a unix socket (spec/api.md, "Daemon"):
//
//	curl --unix-socket /run/exanet/pfd.sock http://pfd/v1/status
//
// Every answer is an object with the key "version", which is Version here. Within one version keys
// are only added: a reader ignores unknown ones. Names are in snake case; a unit is the end of a
// name (_ns, _us, _bytes), and counters end in _total. Addresses and register values are strings
// in hexadecimal (Hex), because a JSON number holds only 53 bits.
//
// An answer depends on the peer's credentials. A peer with CAP_SYS_PTRACE in pfd's user namespace,
// as root has it, sees everything, and so does the uid of a pfd that does not run as root. Another
// uid sees its own domains, channels, banks, FIFO entries and faults, the status, the nodes and the
// counters, and is refused the registers. It also sees the faults of its ended processes while pfd
// remembers these (the last 32 attachments of each slot).
//
// docs/papers.md lists the papers that comments cite by number.
package control
