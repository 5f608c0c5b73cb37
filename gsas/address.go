package gsas

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// Address is an address in the global address space: a node's partition, and a byte in it.
type Address = atomics.Address

// At returns the address of a byte of a node's partition.
func At(node device.NodeID, offset uint64) Address { return atomics.At(node, offset) }

// PageSize is the size of a page.
const PageSize = device.PageSize

// Token names a tree. A process that has it can join the tree. Its text is 32 hexadecimal digits.
type Token [16]byte

// String returns the text of a token.
func (t Token) String() string { return hex.EncodeToString(t[:]) }

// ErrToken: the text is not a token's.
var ErrToken = errors.New("not the token of a tree")

// ParseToken returns the token that a text names. An error matches ErrToken.
func ParseToken(s string) (t Token, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(t) {
		return Token{}, fmt.Errorf("%w: %q: give its 32 hexadecimal digits", ErrToken, s)
	}
	return Token(b), nil
}
