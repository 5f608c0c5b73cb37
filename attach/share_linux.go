package attach

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/sockets"
)

// Messages of an attachment that stands (ours; docs/attach.md section 8).
const (
	TypeShare   Type = 5 // process to pfd: this memory is for transfers, with a memfd
	TypeUnshare Type = 6 // process to pfd: and no more
	TypeShared  Type = 7 // pfd to process: done
	// TypeRegister hands missing pages of memory over, with the userfaultfd that
	// it is registered with: a Range.
	TypeRegister   Type = 8
	TypeUnregister Type = 9 // process to pfd: and takes them back, a Range
	// TypePrefetch says that shared memory was brought in: a Range.
	TypePrefetch Type = 13
	// TypeInvalidate says that pages of shared memory were taken away: a Range.
	TypeInvalidate Type = 14
)

// Sizes and offsets of these messages (ours).
const (
	ShareSize   = 104
	UnshareSize = 88
	SharedSize  = 96

	offVA        = 72 // u64
	offSize      = 80 // u64: bytes
	offFile      = 88 // u64: bytes from the start of the memfd
	offShareFlag = 96 // u32
	offShareZero = 100
	offAnswered  = 88 // u16 type
	offDoneZero1 = 90 // u16
	offDoneZero2 = 92 // u32

	flagWritable = 1 << 0
	flagWatched  = 1 << 1
	shareFlags   = flagWritable | flagWatched
)

// CodeMemory refuses memory that cannot be shared, or is not.
const CodeMemory Code = 12

// Share says that memory of the process is for transfers. A device that sees the
// process's own tables needs none of it, and pfd then takes note of nothing; for
// any other, addresses that were not shared do not exist. A memfd sealed against
// shrinking travels beside it, and where the process likes a userfaultfd with which it has
// registered the memory (uffd.Holes).
type Share struct {
	Product  string
	VA       device.VA // whole pages
	Size     uint64    // bytes
	Offset   uint64    // bytes from the start of the memfd
	Writable bool      // transfers may write it
	// Watched says that the userfaultfd reports when the memory is unmapped, so that an
	// munmap waits until pfd has read that. A pfd that does not read it refuses the bit
	// (CodeProtocol).
	Watched bool
}

// Append appends the message to b.
func (s *Share) Append(b []byte) []byte {
	all, m := begin(b, TypeShare, ShareSize, s.Product)
	binary.LittleEndian.PutUint64(m[offVA:], uint64(s.VA))
	binary.LittleEndian.PutUint64(m[offSize:], s.Size)
	binary.LittleEndian.PutUint64(m[offFile:], s.Offset)
	if s.Writable {
		m[offShareFlag] |= flagWritable
	}
	if s.Watched {
		m[offShareFlag] |= flagWatched
	}
	return all
}

// DecodeShare reads a share. Errors match ErrMessage or ErrValue.
func DecodeShare(b []byte) (Share, error) {
	product, err := decode(b, TypeShare, ShareSize)
	if err != nil {
		return Share{}, err
	}
	flags := binary.LittleEndian.Uint32(b[offShareFlag:])
	switch {
	case binary.LittleEndian.Uint32(b[offShareZero:]) != 0:
		return Share{}, fmt.Errorf("%w: reserved bytes are not zero", ErrMessage)
	case flags&^shareFlags != 0:
		return Share{}, fmt.Errorf("%w: flags %#x", ErrValue, flags)
	}
	s := Share{
		Product: product,
		VA:      device.VA(binary.LittleEndian.Uint64(b[offVA:])),
		Size:    binary.LittleEndian.Uint64(b[offSize:]),
		Offset:  binary.LittleEndian.Uint64(b[offFile:]), Writable: flags&flagWritable != 0,
		Watched: flags&flagWatched != 0,
	}
	return s, checkRange(s.VA, s.Size, s.Offset)
}

func checkRange(va device.VA, size, offset uint64) error {
	switch {
	case size == 0 || (uint64(va)|size|offset)%device.PageSize != 0:
		return fmt.Errorf("%w: %d bytes at %v, from %d of the file: whole pages of %d bytes are needed", ErrValue, size, va, offset, device.PageSize)
	case uint64(va)+size < uint64(va) || offset+size < offset:
		return fmt.Errorf("%w: %d bytes at %v, from %d of the file, pass the end", ErrValue, size, va, offset)
	}
	return nil
}

// Unshare takes memory back, with exactly the bounds that it was shared with.
type Unshare struct {
	Product string
	VA      device.VA
	Size    uint64
}

// Append appends the message to b.
func (u *Unshare) Append(b []byte) []byte {
	all, m := begin(b, TypeUnshare, UnshareSize, u.Product)
	binary.LittleEndian.PutUint64(m[offVA:], uint64(u.VA))
	binary.LittleEndian.PutUint64(m[offSize:], u.Size)
	return all
}

// DecodeUnshare reads an unshare. Errors match ErrMessage or ErrValue.
func DecodeUnshare(b []byte) (Unshare, error) {
	product, err := decode(b, TypeUnshare, UnshareSize)
	if err != nil {
		return Unshare{}, err
	}
	u := Unshare{
		Product: product,
		VA:      device.VA(binary.LittleEndian.Uint64(b[offVA:])),
		Size:    binary.LittleEndian.Uint64(b[offSize:]),
	}
	return u, checkRange(u.VA, u.Size, 0)
}

// Range is a register, an unregister, a prefetch or an invalidate: memory by its bounds. With a
// register travels the userfaultfd, non-blocking; the process keeps no duplicate.
type Range struct {
	Product string
	Type    Type // TypeRegister, TypeUnregister, TypePrefetch or TypeInvalidate
	VA      device.VA
	Size    uint64
}

// Append appends the message to b.
func (r *Range) Append(b []byte) []byte {
	all, m := begin(b, r.Type, UnshareSize, r.Product)
	binary.LittleEndian.PutUint64(m[offVA:], uint64(r.VA))
	binary.LittleEndian.PutUint64(m[offSize:], r.Size)
	return all
}

// DecodeRange reads a register, an unregister, a prefetch or an invalidate. Errors match ErrMessage
// or ErrValue.
func DecodeRange(b []byte) (Range, error) {
	h, err := DecodeHeader(b)
	if err != nil {
		return Range{}, err
	}
	switch h.Type {
	case TypeRegister, TypeUnregister, TypePrefetch, TypeInvalidate:
	default:
		return Range{}, fmt.Errorf("%w: type %d, want %d, %d, %d or %d", ErrMessage, h.Type, TypeRegister, TypeUnregister, TypePrefetch, TypeInvalidate)
	}
	if _, err := decode(b, h.Type, UnshareSize); err != nil {
		return Range{}, err
	}
	r := Range{
		Product: h.Product, Type: h.Type,
		VA:   device.VA(binary.LittleEndian.Uint64(b[offVA:])),
		Size: binary.LittleEndian.Uint64(b[offSize:]),
	}
	return r, checkRange(r.VA, r.Size, 0)
}

// Shared answers a share, an unshare, a register, an unregister, a prefetch or an invalidate.
type Shared struct {
	Product  string
	VA       device.VA
	Size     uint64
	Answered Type
}

// Append appends the message to b.
func (s *Shared) Append(b []byte) []byte {
	all, m := begin(b, TypeShared, SharedSize, s.Product)
	binary.LittleEndian.PutUint64(m[offVA:], uint64(s.VA))
	binary.LittleEndian.PutUint64(m[offSize:], s.Size)
	binary.LittleEndian.PutUint16(m[offAnswered:], uint16(s.Answered))
	return all
}

// DecodeShared reads an answer. Errors match ErrMessage or ErrValue.
func DecodeShared(b []byte) (Shared, error) {
	product, err := decode(b, TypeShared, SharedSize)
	if err != nil {
		return Shared{}, err
	}
	if binary.LittleEndian.Uint16(b[offDoneZero1:]) != 0 || binary.LittleEndian.Uint32(b[offDoneZero2:]) != 0 {
		return Shared{}, fmt.Errorf("%w: reserved bytes are not zero", ErrMessage)
	}
	s := Shared{
		Product:  product,
		VA:       device.VA(binary.LittleEndian.Uint64(b[offVA:])),
		Size:     binary.LittleEndian.Uint64(b[offSize:]),
		Answered: Type(binary.LittleEndian.Uint16(b[offAnswered:])),
	}
	switch s.Answered {
	case TypeShare, TypeUnshare, TypeRegister, TypeUnregister, TypePrefetch, TypeInvalidate:
	default:
		return Shared{}, fmt.Errorf("%w: answer to type %d", ErrValue, s.Answered)
	}
	return s, checkRange(s.VA, s.Size, 0)
}

// Sharer takes the memory that a process shares. An error's text is told to the
// process.
type Sharer interface {
	// Share takes memory: a memfd and, -1 where none came, a userfaultfd that its missing
	// pages may be filled by. Both stay the caller's.
	Share(s Share, fd, holes int) error
	// Unshare gives it back: when it returns no transfer reaches it.
	Unshare(u Unshare) error
	// Prefetch enters what of it is in memory in the device's tables, as far as that
	// goes: a transfer need not fault there.
	Prefetch(r Range)
	// Invalidate takes pages that are the file's no more from the device: when it
	// returns its next access to each faults.
	Invalidate(r Range)
}

// Registrar takes the userfaultfds of a process. An error's text is told to it.
type Registrar interface {
	// Register serves a duplicate of fd, which stays the caller's: to close what a
	// process has sent may last for ever.
	Register(r Range, fd int) error
	Unregister(r Range) error
}

// Hold keeps a welcomed connection until the process ends it (nil), or ctx ends
// (its error), and answers what the process asks meanwhile; sharer may be nil,
// and then memory is accepted and ignored. Any other message gets a refusal. A
// process that breaks the framing, or does not take its answers, is an error;
// the caller ends the attachment then.
func (c *Conn) Hold(ctx context.Context, sharer Sharer, registrar ...Registrar) error {
	var buf [MaxMessage]byte
	for {
		n, fds, err := c.Receive(ctx, buf[:])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if errors.Is(err, sockets.ErrDescriptors) { // the process can ask again
			h, _ := DecodeHeader(buf[:n])
			if err := c.Refuse(CodeInternal, h.Type, "pfd: "+sockets.ErrDescriptors.Error()); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		err = c.answer(buf[:n], fds, sharer, registrar)
		c.discard(ctx, fds)
		if err != nil {
			return err
		}
	}
}

// answer answers one message of an attachment that stands.
func (c *Conn) answer(b []byte, fds Descriptors, sharer Sharer, registrar []Registrar) error {
	h, err := DecodeHeader(b)
	if err != nil {
		return errors.Join(err, c.Refuse(CodeProtocol, 0, err.Error()))
	}
	done := Shared{Product: Product(), Answered: h.Type}
	switch h.Type {
	case TypeShare:
		var s Share
		s, err = DecodeShare(b)
		if err == nil && len(fds) != 1 && len(fds) != 2 {
			err = fmt.Errorf("%w: a share with %d descriptors, want one or two", ErrMessage, len(fds))
		}
		if err == nil && s.Watched && len(fds) == 1 {
			err = fmt.Errorf("%w: a share with bit 1 and no userfaultfd", ErrMessage)
		}
		if err != nil {
			return c.Refuse(CodeProtocol, h.Type, err.Error())
		}
		done.VA, done.Size = s.VA, s.Size
		if sharer != nil {
			holes := -1
			if len(fds) == 2 {
				holes = fds[1]
			}
			err = sharer.Share(s, fds[0], holes)
		}
	case TypeUnshare:
		var u Unshare
		u, err = DecodeUnshare(b)
		if err == nil && len(fds) != 0 {
			err = fmt.Errorf("%w: an unshare with %d descriptors", ErrMessage, len(fds))
		}
		if err != nil {
			return c.Refuse(CodeProtocol, h.Type, err.Error())
		}
		done.VA, done.Size = u.VA, u.Size
		if sharer != nil {
			err = sharer.Unshare(u)
		}
	case TypeRegister, TypeUnregister:
		var r Range
		r, err = DecodeRange(b)
		if want := int(TypeUnregister - h.Type); err == nil && len(fds) != want {
			err = fmt.Errorf("%w: type %d with %d descriptors, want %d", ErrMessage, h.Type, len(fds), want)
		}
		if err != nil {
			return c.Refuse(CodeProtocol, h.Type, err.Error())
		}
		if len(registrar) == 0 {
			return c.Refuse(CodeUnsupported, h.Type, "userfaultfds are taken of processes attached with method uffd only")
		}
		done.VA, done.Size = r.VA, r.Size
		for _, g := range registrar {
			if h.Type == TypeUnregister {
				err = g.Unregister(r)
			} else {
				err = g.Register(r, fds[0])
			}
		}
	case TypePrefetch, TypeInvalidate:
		var r Range
		r, err = DecodeRange(b)
		if err == nil && len(fds) != 0 {
			err = fmt.Errorf("%w: type %d with %d descriptors, want none", ErrMessage, h.Type, len(fds))
		}
		if err != nil {
			return c.Refuse(CodeProtocol, h.Type, err.Error())
		}
		done.VA, done.Size = r.VA, r.Size
		switch {
		case sharer == nil: // the device has the process's own tables
		case h.Type == TypePrefetch:
			sharer.Prefetch(r)
		default:
			sharer.Invalidate(r)
		}
	default:
		return c.Refuse(unknownOr(h.Type, CodeProtocol), h.Type,
			fmt.Sprintf("message type %d is not one that %s takes on an attachment that stands: use a pfd that has it", h.Type, Product()))
	}
	if err != nil {
		return c.Refuse(CodeMemory, h.Type, err.Error())
	}
	return c.Send(done.Append(nil))
}
