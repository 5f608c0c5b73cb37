// Package qemu sets up virtual machines that have ExaNet nodes as PCI devices,
// boots them, and runs commands in them: exanetctl qemu.
//
// A Cache holds what Setup fetches and makes: QEMU, a kernel of Debian's with the
// modules that matter, an initramfs, and the state of a guest that has booted.
// That boot is the only one: a Fleet restores the state and plugs the nodes in,
// which takes seconds where booting takes up to minutes without KVM.
//
// What runs in a guest is package qemu/guest; how the host has commands run
// there, package qemu/agent.
package qemu
