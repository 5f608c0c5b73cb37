// Package qemu sets up virtual machines with ExaNet nodes as PCI devices, boots them, and runs
// commands in them (exanetctl qemu).
//
// A Cache has the files that Setup fetches and builds: QEMU, a kernel of Debian with the needed
// modules, an initramfs, and the saved state of a booted guest. The guest boots only once: a
// Fleet restores the state and plugs the nodes in. That takes seconds, while a boot takes up to
// minutes without KVM.
//
// Package qemu/guest runs inside a guest. Package qemu/agent runs the host's commands there.
package qemu
