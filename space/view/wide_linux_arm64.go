package view

// wide reports whether the processor has atomic operations on 128 bits, and stores of 256: every one has
// LDAXP and STP.
func wide() bool { return true }
