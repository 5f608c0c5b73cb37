// Package guests tests nodes in virtual machines (package qemu). A pfd in each guest drives
// them through the guest's kernel.
package guests
