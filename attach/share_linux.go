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

// Messages of an established attachment (docs/attach.md section 8). Values below are defined by
// this project.
const (
	TypeShare   Type = 5 // process to pfd: transfers may access this memory, with a memfd
	TypeUnshare Type = 6 // process to pfd: and no longer
	TypeShared  Type = 7 // pfd to process: done
	// TypeRegister passes the missing pages of memory to pfd, with the userfaultfd that it is
	// registered with: a Range.
	TypeRegister   Type = 8
	TypeUnregister Type = 9 // process to pfd: undoes that, a Range
	// TypePrefetch says that shared memory was paged in: a Range.
	TypePrefetch Type = 13
	// TypeInvalidate says that pages of shared memory were discarded: a Range.
	TypeInvalidate Type = 14
)

// Sizes and offsets of these messages. Values below are defined by this project.
const (
	ShareSize  = 104
	RangeSize  = 88
	SharedSize = 96

	offVA        = 72  // u64
	offSize      = 80  // u64: bytes
	offFile      = 88  // u64: bytes from the start of the memfd
	offShareFlag = 96  // u32
	offFolio     = 100 // u16: pages
	offShareZero = 102 // u16
	offAnswered  = 88  // u16 type
	offDoneZero1 = 90  // u16
	offDoneZero2 = 92  // u32

	flagWritable = 1 << 0
	flagWatched  = 1 << 1
	shareFlags   = flagWritable | flagWatched

	// MaxFolio is the largest Share.Folio: 2 MiB.
	MaxFolio = 512
)

// CodeMemory refuses memory that cannot be shared, or is not shared.
const CodeMemory Code = 12

// Share allows transfers to access memory of the process. A device that sees the process's own
// page tables needs no share, and pfd then records none; for any other device only shared
// addresses exist. The message carries a memfd sealed against shrinking, and optionally a
// userfaultfd with which the process has registered the memory (uffd.Holes).
type Share struct {
	Product  string
	VA       device.VA // whole pages
	Size     uint64    // bytes
	Offset   uint64    // bytes from the start of the memfd
	Writable bool      // transfers may write it
	// Watched says that the userfaultfd reports when the memory is unmapped, so that an munmap
	// waits until pfd has read that. A pfd that does not read it refuses the bit (CodeProtocol).
	Watched bool
	// Folio is how many pages the kernel brings in together if an absent one is touched: a power
	// of two, MaxFolio at most, or 0 for single pages. It is a hint. pfd then pages in by touching
	// the memory, because a userfaultfd fills single pages. An older pfd refuses it (CodeProtocol).
	Folio uint16
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
	binary.LittleEndian.PutUint16(m[offFolio:], s.Folio)
	return all
}

// DecodeShare decodes a share. Errors match ErrMessage or ErrValue.
func DecodeShare(b []byte) (Share, error) {
	product, err := decode(b, TypeShare, ShareSize)
	if err != nil {
		return Share{}, err
	}
	flags, folio := binary.LittleEndian.Uint32(b[offShareFlag:]), binary.LittleEndian.Uint16(b[offFolio:])
	switch {
	case binary.LittleEndian.Uint16(b[offShareZero:]) != 0:
		return Share{}, fmt.Errorf("%w: reserved bytes are not zero", ErrMessage)
	case folio > MaxFolio || folio == 1 || folio&(folio-1) != 0:
		return Share{}, fmt.Errorf("%w: a folio of %d pages: give 0, or a power of two from 2 to %d", ErrValue, folio, MaxFolio)
	case flags&^shareFlags != 0:
		return Share{}, fmt.Errorf("%w: flags %#x", ErrValue, flags)
	}
	s := Share{
		Product: product,
		VA:      device.VA(binary.LittleEndian.Uint64(b[offVA:])),
		Size:    binary.LittleEndian.Uint64(b[offSize:]),
		Offset:  binary.LittleEndian.Uint64(b[offFile:]), Writable: flags&flagWritable != 0,
		Watched: flags&flagWatched != 0, Folio: folio,
	}
	return s, checkRange(s.VA, s.Size, s.Offset)
}

func checkRange(va device.VA, size, offset uint64) error {
	switch {
	case size == 0 || (uint64(va)|size|offset)%device.PageSize != 0:
		return fmt.Errorf("%w: %d bytes at %v, from %d of the file: give whole pages of %d bytes", ErrValue, size, va, offset, device.PageSize)
	case uint64(va)+size < uint64(va) || offset+size < offset:
		return fmt.Errorf("%w: %d bytes at %v, from %d of the file, pass the end", ErrValue, size, va, offset)
	}
	return nil
}

// Range is an unshare, a register, an unregister, a prefetch, an invalidate or an unring: memory by
// its bounds. An unshare undoes a share, and an unring a ring, with exactly its bounds. A register carries the userfaultfd,
// non-blocking; the process keeps no duplicate.
type Range struct {
	Product string
	Type    Type // TypeUnshare, TypeRegister, TypeUnregister, TypePrefetch, TypeInvalidate or TypeUnring
	VA      device.VA
	Size    uint64
}

// Append appends the message to b.
func (r *Range) Append(b []byte) []byte {
	all, m := begin(b, r.Type, RangeSize, r.Product)
	binary.LittleEndian.PutUint64(m[offVA:], uint64(r.VA))
	binary.LittleEndian.PutUint64(m[offSize:], r.Size)
	return all
}

// DecodeRange decodes a Range. Errors match ErrMessage or ErrValue.
func DecodeRange(b []byte) (Range, error) {
	h, err := DecodeHeader(b)
	if err != nil {
		return Range{}, err
	}
	switch h.Type {
	case TypeUnshare, TypeRegister, TypeUnregister, TypePrefetch, TypeInvalidate, TypeUnring:
	default:
		return Range{}, fmt.Errorf("%w: type %d, not %d, %d, %d, %d, %d or %d", ErrMessage, h.Type, TypeUnshare, TypeRegister, TypeUnregister, TypePrefetch, TypeInvalidate, TypeUnring)
	}
	if _, err := decode(b, h.Type, RangeSize); err != nil {
		return Range{}, err
	}
	r := Range{
		Product: h.Product, Type: h.Type,
		VA:   device.VA(binary.LittleEndian.Uint64(b[offVA:])),
		Size: binary.LittleEndian.Uint64(b[offSize:]),
	}
	return r, checkBounds(r.Type, r.VA, r.Size)
}

// checkBounds checks the range of a message of type t.
func checkBounds(t Type, va device.VA, size uint64) error {
	switch t {
	case TypeRing, TypeUnring:
		return checkWords(va, size)
	case TypeWindow, TypeUnwindow:
		return checkWindow(va, size)
	case TypeUnthread:
		return checkThread(uint64(va), size)
	}
	return checkRange(va, size, 0)
}

// Shared answers a share, a Window, a ring, a Range, or an Unthread, whose index is then in VA. The
// answer to a ring has type TypeRinged.
type Shared struct {
	Product  string
	VA       device.VA
	Size     uint64
	Answered Type
}

// Append appends the message to b.
func (s *Shared) Append(b []byte) []byte {
	all, m := begin(b, answerTo(s.Answered), SharedSize, s.Product)
	binary.LittleEndian.PutUint64(m[offVA:], uint64(s.VA))
	binary.LittleEndian.PutUint64(m[offSize:], s.Size)
	binary.LittleEndian.PutUint16(m[offAnswered:], uint16(s.Answered))
	return all
}

// answerTo returns the type of the answer to a message of type t.
func answerTo(t Type) Type {
	if t == TypeRing {
		return TypeRinged
	}
	return TypeShared
}

// DecodeShared decodes an answer. Errors match ErrMessage or ErrValue.
func DecodeShared(b []byte) (Shared, error) {
	answered := Type(0)
	if len(b) == SharedSize {
		answered = Type(binary.LittleEndian.Uint16(b[offAnswered:]))
	}
	product, err := decode(b, answerTo(answered), SharedSize)
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
		Answered: answered,
	}
	switch s.Answered {
	case TypeShare, TypeUnshare, TypeRegister, TypeUnregister, TypePrefetch, TypeInvalidate, TypeWindow, TypeUnwindow, TypeRing, TypeUnring, TypeUnthread:
	default:
		return Shared{}, fmt.Errorf("%w: answer to type %d", ErrValue, s.Answered)
	}
	return s, checkBounds(s.Answered, s.VA, s.Size)
}

// Sharer accepts the memory that a process shares. The process receives the text of an error.
type Sharer interface {
	// Share adds memory: a memfd, and a userfaultfd that can fill its missing pages, -1 if none
	// came. The caller still owns both.
	Share(s Share, fd, holes int) error
	// Unshare removes it: after it returns, no transfer accesses the memory.
	Unshare(r Range) error
	// Prefetch enters the pages that are in memory in the device's tables, as far as possible, so
	// that a transfer need not fault there.
	Prefetch(r Range)
	// Invalidate removes pages that the file no longer has from the device: after it returns, the
	// next access to each of them faults.
	Invalidate(r Range)
}

// Registrar accepts the userfaultfds of a process, which receives the text of an error.
type Registrar interface {
	// Register serves a duplicate of fd. The caller still closes fd, which may last for ever if a
	// process has sent it.
	Register(r Range, fd int) error
	Unregister(r Range) error
}

// Handlers answer the requests of a process.
type Handlers struct {
	Sharer    Sharer    // nil: memory is accepted and ignored
	Registrar Registrar // nil: userfaultfds are refused
	Windower  Windower  // nil: memory windows are refused
	Ringer    Ringer    // nil: rings are refused
	Threader  Threader  // nil: threads are refused
}

// Hold serves a welcomed connection until the process ends it (nil) or ctx ends (its error): it
// answers the process's requests. Any other message is refused. If a process breaks the framing, or
// does not read its answers, Hold returns an error and the caller ends the attachment.
//
// A handler's error that is a *RefusedError is sent with its code, any other with CodeMemory.
func (c *Conn) Hold(ctx context.Context, handlers Handlers) error {
	var buf [MaxMessage]byte
	for {
		n, fds, err := c.Receive(ctx, buf[:])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if errors.Is(err, sockets.ErrDescriptors) { // the process can retry
			h, _ := DecodeHeader(buf[:n])
			if err := c.Refuse(CodeInternal, h.Type, "pfd: "+sockets.ErrDescriptors.Error()); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		err = c.answer(buf[:n], fds, &handlers)
		c.discard(ctx, fds)
		if err != nil {
			return err
		}
	}
}

// answer answers one message of an established attachment.
func (c *Conn) answer(b []byte, fds Descriptors, h *Handlers) error {
	head, err := DecodeHeader(b)
	if err != nil {
		return errors.Join(err, c.Refuse(CodeProtocol, 0, err.Error()))
	}
	done := Shared{Product: Product(), Answered: head.Type}
	var answer Descriptors
	defer func() { answer.Close() }()
	switch head.Type {
	case TypeShare:
		var s Share
		s, err = DecodeShare(b)
		if err == nil && len(fds) != 1 && len(fds) != 2 {
			err = fmt.Errorf("%w: a share with %d descriptors, not one or two", ErrMessage, len(fds))
		}
		if err == nil && s.Watched && len(fds) == 1 {
			err = fmt.Errorf("%w: a share with bit 1 and no userfaultfd", ErrMessage)
		}
		if err != nil {
			return c.Refuse(CodeProtocol, head.Type, err.Error())
		}
		done.VA, done.Size = s.VA, s.Size
		if h.Sharer != nil {
			holes := -1
			if len(fds) == 2 {
				holes = fds[1]
			}
			err = h.Sharer.Share(s, fds[0], holes)
		}
	case TypeWindow, TypeUnwindow:
		var w Window
		w, err = DecodeWindow(b)
		if err == nil && len(fds) != 0 {
			err = fmt.Errorf("%w: a window with %d descriptors", ErrMessage, len(fds))
		}
		if err != nil {
			return c.Refuse(CodeProtocol, head.Type, err.Error())
		}
		done.VA, done.Size = w.VA, w.Bytes
		switch {
		case h.Windower == nil:
			return c.Refuse(CodeUnsupported, head.Type, "this pfd has no memory windows")
		case head.Type == TypeWindow:
			err = h.Windower.Window(w.MemoryWindow)
		default:
			err = h.Windower.CloseWindow(w.MemoryWindow)
		}
	case TypeRing:
		var r Ring
		r, err = DecodeRing(b)
		if err == nil && len(fds) != 0 {
			err = fmt.Errorf("%w: a ring with %d descriptors", ErrMessage, len(fds))
		}
		if err != nil {
			return c.Refuse(CodeProtocol, head.Type, err.Error())
		}
		done.VA, done.Size = r.VA, r.Size
		if h.Ringer == nil {
			return c.Refuse(CodeUnsupported, head.Type, noRings)
		}
		var fd int
		if fd, err = h.Ringer.Ring(r); err == nil {
			answer = Descriptors{fd}
		}
	case TypeThread:
		return c.answerThread(b, fds, h.Threader)
	case TypeUnthread:
		var u Unthread
		u, err = DecodeUnthread(b)
		if err == nil && len(fds) != 0 {
			err = fmt.Errorf("%w: an unthread with %d descriptors", ErrMessage, len(fds))
		}
		if err != nil {
			return c.Refuse(CodeProtocol, head.Type, err.Error())
		}
		done.VA = device.VA(u.Index)
		if h.Threader == nil {
			return c.Refuse(CodeUnsupported, head.Type, noThreads)
		}
		err = h.Threader.Unthread(int(u.Index))
	case TypeUnshare, TypeRegister, TypeUnregister, TypePrefetch, TypeInvalidate, TypeUnring:
		want := 0
		if head.Type == TypeRegister {
			want = 1
		}
		var r Range
		r, err = DecodeRange(b)
		if err == nil && len(fds) != want {
			err = fmt.Errorf("%w: type %d with %d descriptors, not %d", ErrMessage, head.Type, len(fds), want)
		}
		if err != nil {
			return c.Refuse(CodeProtocol, head.Type, err.Error())
		}
		done.VA, done.Size = r.VA, r.Size
		switch {
		case head.Type == TypeRegister || head.Type == TypeUnregister:
			if h.Registrar == nil {
				return c.Refuse(CodeUnsupported, head.Type, "only processes attached with method uffd may register a userfaultfd")
			}
			if head.Type == TypeUnregister {
				err = h.Registrar.Unregister(r)
			} else {
				err = h.Registrar.Register(r, fds[0])
			}
		case head.Type == TypeUnring:
			if h.Ringer == nil {
				return c.Refuse(CodeUnsupported, head.Type, noRings)
			}
			err = h.Ringer.Unring(r)
		case h.Sharer == nil: // the device uses the process's own tables
		case head.Type == TypeUnshare:
			err = h.Sharer.Unshare(r)
		case head.Type == TypePrefetch:
			h.Sharer.Prefetch(r)
		default:
			h.Sharer.Invalidate(r)
		}
	default:
		return c.Refuse(unknownOr(head.Type, CodeProtocol), head.Type,
			fmt.Sprintf("message type %d is not one that %s accepts on an established attachment: use a pfd that has it", head.Type, Product()))
	}
	if err != nil {
		return c.refuse(head.Type, err)
	}
	return c.Send(done.Append(nil), answer...)
}

// answerThread answers the request for a thread.
func (c *Conn) answerThread(b []byte, fds Descriptors, h Threader) error {
	t, err := DecodeThread(b)
	if err == nil && len(fds) != 0 {
		err = fmt.Errorf("%w: a thread with %d descriptors", ErrMessage, len(fds))
	}
	if err != nil {
		return c.Refuse(CodeProtocol, TypeThread, err.Error())
	}
	if h == nil {
		return c.Refuse(CodeUnsupported, TypeThread, noThreads)
	}
	answer, memory, err := h.Thread(t)
	if err != nil {
		return c.refuse(TypeThread, err)
	}
	sent := Descriptors{memory}
	defer sent.Close()
	answer.Product = Product()
	msg, err := answer.Append(nil)
	if err != nil {
		return err
	}
	return c.Send(msg, sent...)
}

// refuse answers a message with the error of its handler.
func (c *Conn) refuse(t Type, err error) error {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return c.Refuse(refused.Code, t, refused.Text)
	}
	return c.Refuse(CodeMemory, t, err.Error())
}

const (
	noRings   = "this pfd has no descriptors to wait on"
	noThreads = "this node has no GSAS threads: use an emulated node of a pfd that has them, and attach with threads"
)
