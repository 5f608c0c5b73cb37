package view

import "golang.org/x/sys/cpu"

// pairs reports whether the processor has CMPXCHG16B.
func pairs() bool { return cpu.X86.HasCX16 }
