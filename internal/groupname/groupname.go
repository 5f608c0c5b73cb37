// Package groupname checks the names of groups. It is a package of its own so that the library,
// which sends a name, and package domain, which keeps it, apply one rule.
package groupname

import (
	"errors"
	"fmt"
)

// Max is the length of the longest name in bytes. The field of the attachment protocol has 64
// bytes with a terminating NUL (docs/attach.md, HELLO); defined by this project.
const Max = 63

// ErrName reports that a name cannot be the name of a group.
var ErrName = errors.New("bad group name")

// Check returns nil if name is valid: 1 to Max of a-z A-Z 0-9 . _ -, so that a name cannot
// break a table, a log or a file. Errors match ErrName.
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
