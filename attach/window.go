package attach

import (
	"encoding/binary"
	"fmt"

	"github.com/exanet/pfd/device"
)

// Memory windows (docs/attach.md section 8). Values below are defined by this project.
const (
	TypeWindow   Type = 15 // process to pfd: opens a range of its memory to a peer
	TypeUnwindow Type = 16 // process to pfd: withdraws a window, given as it was opened

	WindowSize = 96

	offPeer       = 88 // u16 PDID
	offRights     = 90 // u8
	offWindowZero = 91 // five bytes
)

// CodeNotFound refuses a name of something that does not exist. Defined by this project.
const CodeNotFound Code = 13

// Window is a window or an unwindow.
type Window struct {
	Product string
	Type    Type // TypeWindow or TypeUnwindow
	device.MemoryWindow
}

// Append appends the message to b.
func (w *Window) Append(b []byte) []byte {
	all, m := begin(b, w.Type, WindowSize, w.Product)
	binary.LittleEndian.PutUint64(m[offVA:], uint64(w.VA))
	binary.LittleEndian.PutUint64(m[offSize:], w.Bytes)
	binary.LittleEndian.PutUint16(m[offPeer:], uint16(w.Peer))
	m[offRights] = uint8(w.Rights)
	return all
}

// DecodeWindow decodes a window or an unwindow. Errors match ErrMessage or ErrValue.
func DecodeWindow(b []byte) (Window, error) {
	h, err := DecodeHeader(b)
	if err != nil {
		return Window{}, err
	}
	if h.Type != TypeWindow && h.Type != TypeUnwindow {
		return Window{}, fmt.Errorf("%w: type %d, not %d or %d", ErrMessage, h.Type, TypeWindow, TypeUnwindow)
	}
	if _, err := decode(b, h.Type, WindowSize); err != nil {
		return Window{}, err
	}
	w := Window{Product: h.Product, Type: h.Type, MemoryWindow: device.MemoryWindow{
		VA:     device.VA(binary.LittleEndian.Uint64(b[offVA:])),
		Bytes:  binary.LittleEndian.Uint64(b[offSize:]),
		Peer:   device.PDID(binary.LittleEndian.Uint16(b[offPeer:])),
		Rights: device.Rights(b[offRights]),
	}}
	for i, v := range b[offWindowZero:WindowSize] {
		if v != 0 {
			return Window{}, fmt.Errorf("%w: byte %d is reserved and not zero", ErrMessage, offWindowZero+i)
		}
	}
	if w.Rights == 0 || w.Rights&^device.AllRights != 0 {
		return Window{}, fmt.Errorf("%w: rights %#x: give one or more of read (1), write (2), atomic (4) and messages (8)", ErrValue, uint8(w.Rights))
	}
	return w, checkWindow(w.VA, w.Bytes)
}

func checkWindow(va device.VA, bytes uint64) error {
	switch {
	case bytes == 0:
		return fmt.Errorf("%w: a memory window of 0 bytes at %v: give at least one", ErrValue, va)
	case uint64(va)+bytes-1 < uint64(va):
		return fmt.Errorf("%w: a memory window of %d bytes at %v passes the end of the address space", ErrValue, bytes, va)
	}
	return nil
}

// Windower opens and closes memory windows of a process.
type Windower interface {
	// Window opens a window.
	Window(w device.MemoryWindow) error
	// CloseWindow closes a window. After it returns, nothing that only this window admitted
	// accesses the memory.
	CloseWindow(w device.MemoryWindow) error
}
