// Package tracing tests the eBPF probe with real programs: what its maps say is what
// pfd itself counted. It needs root and a kernel that takes the programs; what it pins
// lies in a bpffs of its own, in a mount namespace of its own.
package tracing
