package memport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/exanet/pfd/device"
)

// Messages on a port's socket. pfd sends a message, with a descriptor if it needs one. The helper
// answers with messageOK and bytes, or messageFailed and a text. Its first message, unasked, says
// that it is ready. Values below are defined by this project.
const (
	messageRegister   = 1 // serve this userfaultfd
	messageUnregister = 2
	messageRead       = 3 // read bytes of the process behind this pidfd

	messageOK     = 1
	messageFailed = 2

	messageSize = 512 // of the largest message
	askSize     = 24  // of pfd's messages: kind, seven zero bytes, address, size
	mostRead    = 64  // bytes that messageRead may ask for
)

// message is a message from pfd.
type message struct {
	kind byte
	va   device.VA
	size uint64
}

func (m *message) encode(b []byte) []byte {
	b = append(b, m.kind, 0, 0, 0, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.va))
	return binary.LittleEndian.AppendUint64(b, m.size)
}

// errMessage says that bytes are not a message from pfd.
var errMessage = errors.New("malformed message to a memory helper")

func decodeMessage(b []byte) (message, error) {
	if len(b) != askSize || b[0] < messageRegister || b[0] > messageRead || strings.Trim(string(b[1:8]), "\x00") != "" {
		return message{}, errMessage
	}
	m := message{kind: b[0], va: device.VA(binary.LittleEndian.Uint64(b[8:])), size: binary.LittleEndian.Uint64(b[16:])}
	switch {
	case m.kind == messageRead && (m.size < 1 || m.size > mostRead),
		m.kind != messageRead && (m.size == 0 || (uint64(m.va)|m.size)%device.PageSize != 0 || uint64(m.va)+m.size < uint64(m.va)):
		return message{}, fmt.Errorf("%w: %d bytes at %v", errMessage, m.size, m.va)
	}
	return m, nil
}

// printable returns a foreign text with only characters that a terminal can show.
func printable(b []byte) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f {
			return '?'
		}
		return r
	}, string(b))
}
