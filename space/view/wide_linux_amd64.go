package view

import "golang.org/x/sys/cpu"

// wide reports whether the processor has CMPXCHG16B, and stores of 256 bits (AVX).
func wide() bool { return cpu.X86.HasCX16 && cpu.X86.HasAVX }
