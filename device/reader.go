package device

import "fmt"

// Reader reads registers of one node and keeps the first error, so that a sequence of reads is
// checked once. After an error each read returns 0.
type Reader struct {
	Bus Bus
	Err error
}

// Read32 reads a register of 32 bits.
func (r *Reader) Read32(w WindowID, offset uint32) uint32 {
	return uint32(r.read(w, offset, 4))
}

// Read64 reads a register of 64 bits.
func (r *Reader) Read64(w WindowID, offset uint32) uint64 {
	return r.read(w, offset, 8)
}

func (r *Reader) read(w WindowID, offset uint32, width int) uint64 {
	if r.Err != nil {
		return 0
	}
	v, err := r.Bus.Window(w).Load(offset, width)
	if err != nil {
		r.Err = fmt.Errorf("register %s+%#x: %w", w, offset, err)
	}
	return v
}
