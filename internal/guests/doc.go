// Package guests holds tests of nodes in virtual machines: a pfd in each, which
// drives them through the guest's kernel (package qemu).
package guests
