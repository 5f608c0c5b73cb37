package device

// Class is the priority of a transfer among those of its node (spec/firmware.md
// "Write path"; 001 §3.2.4).
type Class uint8

// The classes (spec/firmware.md "Write path"; 001 §3.2.4), the first goes first.
const (
	// High: at most a block is left, or the transfer is urgent.
	High Class = iota
	// Medium: at most 512 KiB are left.
	Medium
	// Low: the rest.
	Low
	Classes = 3 // how many there are
)

// mediumSize is the most that a transfer of the medium class has left
// (spec/firmware.md; 001 §3.2.4).
const mediumSize = 512 << 10

// String gives the class's name.
func (c Class) String() string {
	switch c {
	case High:
		return "high"
	case Medium:
		return "medium"
	}
	return "low"
}

// ClassOf gives the class of a transfer that has so many bytes left.
func ClassOf(left uint32, urgent bool) Class {
	switch {
	case urgent || left <= BlockSize:
		return High
	case left <= mediumSize:
		return Medium
	}
	return Low
}
