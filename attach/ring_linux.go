package attach

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

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

// Armed is memory with the ARM words of rings. Disarm stores 0 to the u32 at va and reports whether
// it was not 0, or cannot be reached. It may sleep, as any access to a process's memory.
type Armed interface{ Disarm(va device.VA) bool }

// Bell is pfd's end of a ring.
type Bell struct {
	va     device.VA
	size   uint64
	arm    device.VA
	memory Armed // nil: cannot be reached

	mu sync.Mutex
	fd int // -1 once closed
}

// NewBell makes a ring. The caller closes peer, the process's end, after it was sent.
//
// It is a socket pair. A process cannot make pfd's send block, whatever it does with its own end;
// an eventfd would block at its maximum if the process cleared O_NONBLOCK. With SOCK_SEQPACKET the
// process's end reads as closed when pfd has ended.
func NewBell(r *Ring, memory Armed) (b *Bell, peer int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("create a ring: %w", os.NewSyscallError("socketpair", err))
	}
	// The process must not send anything: pfd would never read it, and a descriptor of the process
	// could block pfd's close. The kernel's smallest buffer has room for several messages.
	if err = unix.Shutdown(pair[0], unix.SHUT_RD); err == nil {
		err = unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 1)
	}
	if err != nil {
		return nil, -1, errors.Join(fmt.Errorf("create a ring: %w", err), unix.Close(pair[0]), unix.Close(pair[1]))
	}
	return &Bell{va: r.VA, size: r.Size, arm: r.Arm, memory: memory, fd: pair[0]}, pair[1], nil
}

// Strike wakes the process if the ring is armed. It may sleep in the touch of ARM.
func (b *Bell) Strike() {
	if b.memory == nil || b.memory.Disarm(b.arm) {
		b.Wake()
	}
}

var wake = [1]byte{1}

// Wake wakes the process whether or not the ring is armed. It does not sleep.
func (b *Bell) Wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fd >= 0 {
		// A full socket is readable. After any other error nobody waits.
		_ = unix.Send(b.fd, wake[:], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
}

// Close closes pfd's end.
func (b *Bell) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	fd := b.fd
	b.fd = -1
	if fd < 0 {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(fd))
}

func (b *Bell) end() device.VA { return b.va + device.VA(b.size) }

// Bells are the rings of one process. They belong to the goroutine that owns its node.
type Bells struct {
	words []*Bell // by address; they do not overlap
	mail  []*Bell // of the mailbox, by number
}

// list returns the list for a range.
func (s *Bells) list(va device.VA) *[]*Bell {
	if va == 0 {
		return &s.mail
	}
	return &s.words
}

// find returns where the ring of a range is, or belongs, in its list.
func (s *Bells) find(va device.VA, size uint64) (at int, there bool) {
	if va == 0 {
		return slices.BinarySearchFunc(s.mail, size, func(b *Bell, n uint64) int { return cmp.Compare(b.size, n) })
	}
	return slices.BinarySearchFunc(s.words, va, func(b *Bell, va device.VA) int { return cmp.Compare(b.va, va) })
}

// Add adds a ring. It returns false if it overlaps another one: completion words then wake one ring,
// and a write costs the same with many rings as with one.
func (s *Bells) Add(b *Bell) bool {
	i, there := s.find(b.va, b.size)
	if there || b.va != 0 && (i > 0 && s.words[i-1].end() > b.va || i < len(s.words) && s.words[i].va < b.end()) {
		return false
	}
	l := s.list(b.va)
	*l = slices.Insert(*l, i, b)
	return true
}

// Remove removes the ring of exactly this range and returns it; nil if there is none.
func (s *Bells) Remove(va device.VA, size uint64) *Bell {
	l := s.list(va)
	i, there := s.find(va, size)
	if !there || (*l)[i].size != size {
		return nil
	}
	b := (*l)[i]
	*l = slices.Delete(*l, i, i+1)
	return b
}

// Words returns the rings for completion words at va: those that watch them, or else those of the
// mailbox. The slice is valid until Add or Remove.
func (s *Bells) Words(va device.VA) []*Bell {
	i, _ := s.find(max(va, 1), 0)
	if i > 0 && s.words[i-1].end() > va {
		i--
	}
	j := i
	for j < len(s.words) && s.words[j].va < va+wordsSize {
		j++
	}
	if i == j {
		return s.mail
	}
	return s.words[i:j]
}

// Mail returns the rings of the mailbox. The slice is valid until Add or Remove.
func (s *Bells) Mail() []*Bell { return s.mail }

// WakeAll wakes the process by all rings, for a device that does not tell which words it has written.
func (s *Bells) WakeAll() {
	WakeAll(s.words)
	WakeAll(s.mail)
}

// WakeAll wakes a process by some of its rings.
func WakeAll(list []*Bell) {
	for _, b := range list {
		b.Wake()
	}
}

// Len returns how many rings there are.
func (s *Bells) Len() int { return len(s.words) + len(s.mail) }

// Close closes all rings, and returns how many there were.
func (s *Bells) Close() (n int) {
	n = s.Len()
	for _, b := range slices.Concat(s.words, s.mail) {
		_ = b.Close() // it cannot fail: the socket has sent all that it will
	}
	s.words, s.mail = nil, nil
	return n
}
