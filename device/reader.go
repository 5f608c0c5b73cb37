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
	return read(r, w, offset, Window.Read32)
}

// Read64 reads a register of 64 bits.
func (r *Reader) Read64(w WindowID, offset uint32) uint64 {
	return read(r, w, offset, Window.Read64)
}

func read[T uint32 | uint64](r *Reader, w WindowID, offset uint32, from func(Window, uint32) (T, error)) (v T) {
	if r.Err != nil {
		return 0
	}
	v, err := from(r.Bus.Window(w), offset)
	if err != nil {
		r.Err = fmt.Errorf("register %s+%#x: %w", w, offset, err)
	}
	return v
}
