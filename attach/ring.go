package attach

import (
	"encoding/binary"
	"fmt"

	"github.com/exanet/pfd/device"
)

// Messages of descriptors to wait on (docs/attach.md section 11). Values below are defined by this
// project.
const (
	TypeRing   Type = 17 // process to pfd: a Ring
	TypeRinged Type = 18 // pfd to process: done, with the process's end of the ring; a Shared
	TypeUnring Type = 19 // process to pfd: undoes that, a Range

	RingSize    = 104
	offArm      = 88 // u64
	offRingZero = 96 // u64

	// MaxRings is how many rings a process may have, MaxMailRings how many of its mailbox.
	MaxRings     = 1024
	MaxMailRings = 8

	// CodeLimit refuses a process or a user that has its share of something.
	CodeLimit Code = 14
)

// wordsSize is the size of a transfer's two completion words, bytes (docs/attach.md section 5).
const wordsSize = 16

// Ring requests a descriptor that becomes readable once completion words came into the range, or
// something for the mailbox, while the u32 at Arm was not 0.
type Ring struct {
	Product string
	VA      device.VA // of the words, aligned to 8; 0: the mailbox
	Size    uint64    // bytes, a multiple of 8; of the mailbox the number of the ring, below MaxMailRings
	Arm     device.VA // aligned to 4, in memory that is shared for writing
}

// Append appends the message to b.
func (r *Ring) Append(b []byte) []byte {
	all, m := begin(b, TypeRing, RingSize, r.Product)
	binary.LittleEndian.PutUint64(m[offVA:], uint64(r.VA))
	binary.LittleEndian.PutUint64(m[offSize:], r.Size)
	binary.LittleEndian.PutUint64(m[offArm:], uint64(r.Arm))
	return all
}

// DecodeRing decodes a ring. Errors match ErrMessage or ErrValue.
func DecodeRing(b []byte) (Ring, error) {
	product, err := decode(b, TypeRing, RingSize)
	if err != nil {
		return Ring{}, err
	}
	if binary.LittleEndian.Uint64(b[offRingZero:]) != 0 {
		return Ring{}, fmt.Errorf("%w: reserved bytes are not zero", ErrMessage)
	}
	r := Ring{
		Product: product,
		VA:      device.VA(binary.LittleEndian.Uint64(b[offVA:])),
		Size:    binary.LittleEndian.Uint64(b[offSize:]),
		Arm:     device.VA(binary.LittleEndian.Uint64(b[offArm:])),
	}
	if r.Arm == 0 || r.Arm%4 != 0 || r.Arm >= addressEnd {
		return Ring{}, fmt.Errorf("%w: ARM at %v: it must be an address aligned to 4 bytes", ErrValue, r.Arm)
	}
	return r, checkWords(r.VA, r.Size)
}

// addressEnd is the end of the address space of every node. Defined by this project.
const addressEnd = device.VA(1) << device.MaxVABits

// checkWords checks the range of a ring.
func checkWords(va device.VA, size uint64) error {
	switch {
	case va == 0 && size >= MaxMailRings:
		return fmt.Errorf("%w: ring %d of the mailbox: it has the rings 0 to %d", ErrValue, size, MaxMailRings-1)
	case va == 0:
	case size == 0 || (uint64(va)|size)%8 != 0:
		return fmt.Errorf("%w: a ring of %d bytes at %v: give whole words of 8 bytes", ErrValue, size, va)
	case va >= addressEnd || size > uint64(addressEnd-va):
		return fmt.Errorf("%w: a ring of %d bytes at %v passes the end of the address space, %v", ErrValue, size, va, addressEnd)
	}
	return nil
}

// Ringer makes the descriptors on which a process waits. The process receives the text of an error.
type Ringer interface {
	// Ring returns the process's end, which the caller closes.
	Ring(r Ring) (fd int, err error)
	// Unring undoes that. pfd sends nothing more by that ring.
	Unring(r Range) error
}
