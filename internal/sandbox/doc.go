// Package sandbox takes from this process, all threads of it and for good, what it
// does not need once it has started: capabilities, new privileges by exec, system
// calls, and files. Each of them holds for what the process starts later, too. A
// step that the kernel does not have, or that this process may not take, is said
// and left out: the others hold all the same.
package sandbox

import "errors"

// ErrUnsupported says that a step is not to be had here.
var ErrUnsupported = errors.New("not supported here")

// Rules say what is kept.
type Rules struct {
	// Capabilities are kept where the process has them, numbers of
	// linux/capability.h; all others go. The bounding set stays: no_new_privs holds.
	Capabilities []int
	// Calls are the names of the system calls that are kept, the Go runtime's
	// among them (Runtime); those that this architecture does not have are passed
	// over. A call that is not among them fails with EPERM. socket keeps local
	// families only (AF_UNIX, AF_NETLINK).
	Calls []string
	// Files is nil where files stay as they are.
	Files *Files
}

// Files are what may be opened by name from now on; what is open stays. A process
// with such rules may touch the memory of none that is without them, whatever its
// user and capabilities are (Landlock's rule for ptrace).
type Files struct {
	Read []string // files, and directories with all below them; those that are not there are passed over
	// Write is Read, and write, make and remove.
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

// Missing is a step that was not taken, and why.
type Missing struct {
	Step Step
	Err  error
}
