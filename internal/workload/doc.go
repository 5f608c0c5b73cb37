// Package workload makes transfers between two test processes and checks every
// byte of them. An initiator on one node writes by RDMA into a buffer of a
// target on another node. The package starts both as processes of the running
// program's image and exchanges JSON lines with them over their standard streams.
//
// Before every transfer it makes both buffers anew in the requested states
// (State), with patterns seeded for that transfer. After the transfer it checks
// every byte of both buffers and of the guards around them, and reads VmLck and
// VmPin of the three processes (initiator, target, pfd) from /proc.
package workload
