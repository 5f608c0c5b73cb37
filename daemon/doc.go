// Package daemon assembles pfd: the machine behind device.Bus, a fault driver
// and a domain manager a node, the attachment socket by which processes come
// and go, the control socket with its JSON endpoints and metrics, and the
// daemon's own life from READY to a drained end.
//
// Who owns what. The goroutine that owns the windows (device.Bus) owns every
// driver state as well: the domain managers, the fault drivers, the handlers.
// All else reaches them by posted functions. An attachment is a session with
// two goroutines of its own, which wait for its socket and for its process and
// otherwise sleep; nothing that a client does makes anyone else wait.
//
// What a client can cost is bounded: the time of a handshake, the number of
// handshakes and of control connections a uid, the size of what it sends, and
// the time that an answer waits for it to read.
//
// docs/papers.md has the papers that comments cite by number.
package daemon
