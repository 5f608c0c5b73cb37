// Package tracing tests the eBPF probe with real programs: its maps must agree with pfd's own
// counts. It needs root and a kernel that accepts the programs. It pins in its own bpffs, in
// its own mount namespace.
package tracing
