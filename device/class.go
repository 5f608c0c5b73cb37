package device

// Class is the priority of a transfer among those of its node (spec/firmware.md "Write path"; 001
// §3.2.4).
type Class uint8

// The classes, highest priority first (spec/firmware.md "Write path"; 001 §3.2.4).
const (
	// High: at most one block is left, or the transfer is urgent.
	High Class = iota
	// Medium: at most 512 KiB are left.
	Medium
	// Low: the rest.
	Low
	Classes = 3 // number of classes
)

// mediumSize is the maximum that a transfer of the medium class has left (spec/firmware.md; 001
// §3.2.4).
const mediumSize = 512 << 10

// String returns the class's name.
func (c Class) String() string {
	switch c {
	case High:
		return "high"
	case Medium:
		return "medium"
	}
	return "low"
}

// ClassOf returns the class of a transfer with left bytes to go.
func ClassOf(left uint32, urgent bool) Class {
	switch {
	case urgent || left <= BlockSize:
		return High
	case left <= mediumSize:
		return Medium
	}
	return Low
}
