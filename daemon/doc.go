// Package daemon is pfd's life and configuration: it assembles the machine behind
// device.Bus, the nodes and attachments (package session) and the control interface (package
// api), and runs them from READY to a drained end.
//
// The goroutine that owns the windows (device.Bus) owns every driver state as well: the
// domain managers, the fault drivers, the handlers. All else reaches them by posted functions.
//
// docs/papers.md has the papers that comments cite by number.
package daemon
