package tree

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/exanet/pfd/device/atomics"
)

// MessageSize is the size of a Message. Values of messages are defined by this project (spec/gsas.md 5).
const MessageSize = 32

// Kind says what a Message is.
type Kind uint8

// Kinds of messages. Asked and Freed go to the owner of a tree, Known and Gone come from it.
const (
	Begin Kind = 1 + iota // Asked for all trees of the receiver that the sender knows follow; Token is the sender's life
	Asked                 // the sender has Threads of the tree, or pages
	Known                 // the tree lives; the answer to the Asked with the same Number. Token is its proof
	Gone                  // there is no tree with this token, or this proof, any more: free its pages
	Freed                 // the sender has freed its pages
	All                   // these were all, as many as Threads says, after the Begin with the same Number
)

// Message carries the state of a tree from one pfd to another.
type Message struct {
	Kind    Kind
	Tree    atomics.Protection
	Token   Token  // zero: not known
	UID     uint32 // in an Asked the first node of the host that is asked about
	Threads uint32 // that the sender has; in a Known 1 if the host that was asked about has shown the token
	Number  uint32 // of an Asked or a Begin, by its sender; in all others that to which they belong
}

// ErrMessage means that a message cannot be decoded.
var ErrMessage = errors.New("tree: a message is not valid")

// Encode returns the bytes of a message.
func (m *Message) Encode() (b [MessageSize]byte) {
	b[0] = byte(m.Kind)
	b[1], b[2], b[3] = byte(m.Tree), byte(m.Tree>>8), byte(m.Tree>>16)
	copy(b[4:20], m.Token[:])
	binary.LittleEndian.PutUint32(b[20:], m.UID)
	binary.LittleEndian.PutUint32(b[24:], m.Threads)
	binary.LittleEndian.PutUint32(b[28:], m.Number)
	return b
}

// Decode decodes a message. Errors match ErrMessage.
func Decode(b []byte) (m Message, err error) {
	if len(b) != MessageSize || b[0] < byte(Begin) || b[0] > byte(All) {
		return m, fmt.Errorf("%w: %x", ErrMessage, b)
	}
	m = Message{
		Kind: Kind(b[0]), Tree: atomics.Protection(uint32(b[1]) | uint32(b[2])<<8 | uint32(b[3])<<16), Token: Token(b[4:20]), UID: binary.LittleEndian.Uint32(b[20:]),
		Threads: binary.LittleEndian.Uint32(b[24:]), Number: binary.LittleEndian.Uint32(b[28:]),
	}
	return m, nil
}
