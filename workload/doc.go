// Package workload makes transfers between two test processes and checks every
// byte of them. An initiator on one node writes by RDMA into a buffer of a
// target on another; both are processes of their own, which this package
// starts from the running program's image and speaks to by JSON lines over
// their standard streams.
//
// Before every transfer both buffers are made anew, in the states asked for
// (State), with patterns seeded for that transfer. After it every byte of both
// buffers is checked, and every byte of the guards before and after them; and
// VmLck and VmPin of the three processes (initiator, target, pfd) are read
// from /proc.
package workload
