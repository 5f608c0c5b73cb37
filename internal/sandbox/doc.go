// Package sandbox permanently removes from all threads of this process what it does not need
// after its start: capabilities, new privileges by exec, system calls, and files. The
// restrictions also hold for programs that the process starts later. A step that the kernel
// does not support, or that this process may not take, is reported and skipped; the others
// still apply.
package sandbox

import "errors"

// ErrUnsupported reports that a step is not supported here.
var ErrUnsupported = errors.New("not supported here")

// Rules are the rights that the process keeps.
type Rules struct {
	// Capabilities are kept if the process has them (numbers of linux/capability.h); all others
	// are dropped. The bounding set stays: no_new_privs makes it harmless.
	Capabilities []int
	// Calls are the names of the system calls that are kept, with the Go runtime's (Runtime).
	// Names that this architecture does not have are ignored. Any other call fails with EPERM.
	// socket is limited to local families (AF_UNIX, AF_NETLINK).
	Calls []string
	// Files is nil if access to files is not restricted.
	Files *Files
}

// Files may be opened by name from now on; open files stay open. A process with such rules
// cannot access the memory of a process without them, whatever its user and capabilities are
// (Landlock's rule for ptrace).
type Files struct {
	Read []string // files, and directories with all below them; missing ones are ignored
	// Write is like Read, with the right to write, create and remove.
	Write []string
}

// Step is one part of a sandbox.
type Step string

// The steps, in their order.
const (
	StepFiles        Step = "files"        // Landlock
	StepCapabilities Step = "capabilities" // capset(2)
	StepCalls        Step = "calls"        // seccomp, with no_new_privs
	StepPrivileges   Step = "privileges"   // no_new_privs, where calls cannot be filtered
)

// Missing is a step that was not taken, with the reason.
type Missing struct {
	Step Step
	Err  error
}
