// Package groupname knows what the name of a group may be. It is apart so that the
// library, which only says the name, and package domain, which keeps it, have one
// rule.
package groupname

import (
	"errors"
	"fmt"
)

// Max is the longest name, bytes: its field in the attachment protocol has 64
// with a NUL at the end (docs/attach.md, HELLO; ours).
const Max = 63

// ErrName says that a name cannot be a group's.
var ErrName = errors.New("bad group name")

// Check tells whether name can be a group's: 1 to Max of a-z A-Z 0-9 . _ -,
// so that it breaks no table, log or file. Errors match ErrName.
func Check(name string) error {
	if len(name) == 0 || len(name) > Max {
		return fmt.Errorf("%w: %d bytes long: 1 to %d are allowed", ErrName, len(name), Max)
	}
	for _, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return fmt.Errorf("%w: %q: only letters, digits, '.', '_' and '-' are allowed", ErrName, name)
		}
	}
	return nil
}
