package view

// pairs reports whether the processor has atomic operations on 128 bits: every one has LDAXP.
func pairs() bool { return true }
