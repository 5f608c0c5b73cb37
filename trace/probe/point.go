// Package probe attaches the eBPF programs to the probe point of package trace, and reads their
// maps.
package probe

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/exanet/pfd/trace"
)

// ErrPoint reports that a program has no usable probe point.
var ErrPoint = errors.New("no probe point")

// maxText limits how much code is searched; defined by this project. pfd has 5 MB.
const maxText = 256 << 20

// Nop is a kind of NOP at the point.
type Nop int

// The kinds of NOP by length in bytes; arm64 has one.
const (
	Nop1  Nop = 1
	Nop4  Nop = 4 // arm64
	Nop5  Nop = 5
	Nop10 Nop = 10
)

// Point has the offsets of a program's probe point in its file.
type Point struct {
	Nops      map[Nop]uint64
	Semaphore uint64
}

// Find finds the point of a program and checks its code. Errors match ErrPoint.
func Find(r io.ReaderAt) (*Point, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return nil, fmt.Errorf("%w: not a program: %w", ErrPoint, err)
	}
	if f.Machine != elf.EM_X86_64 && f.Machine != elf.EM_AARCH64 {
		return nil, fmt.Errorf("%w: a program for %v, want x86-64 or arm64", ErrPoint, f.Machine)
	}
	text := f.Section(".text")
	if text == nil || text.Size > maxText {
		return nil, fmt.Errorf("%w: the program has no code, or too much: it may not be pfd", ErrPoint)
	}
	code, err := text.Data()
	if err != nil {
		return nil, fmt.Errorf("%w: its code: %w", ErrPoint, err)
	}
	at, err := search(f.Machine, text.Addr, code)
	if err != nil {
		return nil, err
	}
	p := &Point{Nops: map[Nop]uint64{}}
	for n, va := range at.nops {
		if p.Nops[n], err = offset(f, va, uint64(n), elf.PF_X); err != nil {
			return nil, err
		}
	}
	if p.Semaphore, err = offset(f, at.semaphore, 16, elf.PF_W); err != nil {
		return nil, err
	}
	var sem [16]byte
	if _, err := r.ReadAt(sem[:], int64(p.Semaphore)); err != nil {
		return nil, fmt.Errorf("%w: its semaphore: %w", ErrPoint, err)
	}
	if got := sem[8:]; !bytes.Equal(got, trace.Mark()) || binary.LittleEndian.Uint64(sem[:]) != 0 {
		return nil, fmt.Errorf("%w: the semaphore's mark is %x", ErrPoint, sem)
	}
	return p, nil
}

// places are addresses in a program.
type places struct {
	nops      map[Nop]uint64
	semaphore uint64
}

// version checks the version of the record's layout.
func version(v uint32) error {
	if v>>16 != 0x4558 { // "EX"
		return errCode
	}
	if v &= 0xffff; v != trace.Version {
		return fmt.Errorf("%w: its records have layout %d, this program reads %d: use the exanetctl of the same release", ErrPoint, v, trace.Version)
	}
	return nil
}

// search finds the point in a program's code by its instructions, which no other function has.
// It needs no symbols, so it also works for stripped programs.
func search(m elf.Machine, va uint64, code []byte) (places, error) {
	mark, before, size := nopsX86, 22, 22+len(nopsX86)
	decode := decodeX86
	if m == elf.EM_AARCH64 {
		mark, before, size = nopsARM, 24, 32
		decode = decodeARM
	}
	var found *places
	for from := 0; ; {
		i := bytes.Index(code[from:], mark)
		if i < 0 {
			break
		}
		i += from
		from = i + 1
		if i < before || i-before+size > len(code) {
			continue
		}
		at, err := decode(va+uint64(i-before), code[i-before:i-before+size])
		if errors.Is(err, errCode) {
			continue
		}
		if err != nil {
			return places{}, err
		}
		if found != nil {
			return places{}, fmt.Errorf("%w: the program has two points", ErrPoint)
		}
		found = &at
	}
	if found == nil {
		return places{}, fmt.Errorf("%w: the program does not contain the point's code: it is not pfd, or a pfd without tracing", ErrPoint)
	}
	return *found, nil
}

// The NOPs of the point on x86, and the following instruction.
var nopsX86 = []byte{
	0x90,
	0x0f, 0x1f, 0x44, 0x00, 0x00,
	0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00,
	0xc3,
}

// nopsARM are NOP and RET.
var nopsARM = []byte{0x1f, 0x20, 0x03, 0xd5, 0xc0, 0x03, 0x5f, 0xd6}

var errCode = errors.New("these bytes are not the code of the point")

func decodeX86(entry uint64, code []byte) (places, error) {
	// lea rel32(%rip), %rax; mov $imm32, %edx; mov off(%rsp), %rdi; mov off(%rsp), %rsi
	if len(code) < 22+len(nopsX86) || !bytes.Equal(code[:3], []byte{0x48, 0x8d, 0x05}) || code[7] != 0xba ||
		!bytes.Equal(code[12:16], []byte{0x48, 0x8b, 0x7c, 0x24}) || !bytes.Equal(code[17:21], []byte{0x48, 0x8b, 0x74, 0x24}) ||
		!bytes.Equal(code[22:], nopsX86) {
		return places{}, errCode
	}
	if err := version(binary.LittleEndian.Uint32(code[8:])); err != nil {
		return places{}, err
	}
	at := entry + 22
	rel := int64(int32(binary.LittleEndian.Uint32(code[3:])))
	return places{
		nops:      map[Nop]uint64{Nop1: at, Nop5: at + 1, Nop10: at + 6},
		semaphore: entry + 7 + uint64(rel),
	}, nil
}

func decodeARM(entry uint64, code []byte) (places, error) {
	if len(code) < 32 {
		return places{}, errCode
	}
	w := make([]uint32, 8)
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	// adrp x2; add x2, x2, #imm; movz w3; movk w3, lsl 16; ldr x0; ldr x1; nop; ret
	switch {
	case w[0]&0x9f00001f != 0x90000002, w[1]&0xffc003ff != 0x91000042,
		w[2]&0xffe0001f != 0x52800003, w[3]&0xffe0001f != 0x72a00003,
		w[4]&0xffc003ff != 0xf94003e0, w[5]&0xffc003ff != 0xf94003e1,
		w[6] != 0xd503201f, w[7] != 0xd65f03c0:
		return places{}, errCode
	}
	if err := version(w[2]>>5&0xffff | w[3]>>5&0xffff<<16); err != nil {
		return places{}, err
	}
	page := int64(int32((w[0]>>5&0x7ffff<<2|w[0]>>29&3)<<11)) >> 11 << 12
	return places{
		nops:      map[Nop]uint64{Nop4: entry + 24},
		semaphore: entry&^0xfff + uint64(page) + uint64(w[1]>>10&0xfff),
	}, nil
}

// offset returns the offset in the file of n bytes at an address, in a segment that is mapped
// with a right.
func offset(f *elf.File, va, n uint64, right elf.ProgFlag) (uint64, error) {
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&right != 0 && va >= p.Vaddr && va-p.Vaddr < p.Filesz && n <= p.Filesz-(va-p.Vaddr) {
			return va - p.Vaddr + p.Off, nil
		}
	}
	return 0, fmt.Errorf("%w: address %#x is in no segment of the file that has the right %v", ErrPoint, va, right)
}
