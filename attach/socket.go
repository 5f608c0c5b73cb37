package attach

import (
	"fmt"

	"github.com/exanet/pfd/internal/sockets"
)

// SocketSuffix is appended to the control socket's path to form the attachment socket's
// (spec/api.md, Daemon).
const SocketSuffix = sockets.AttachSuffix

// DefaultSocket returns the default path of pfd's control socket (docs/attach.md, section 1): the
// first that exists of $RUNTIME_DIRECTORY/pfd.sock (in each of its directories),
// $XDG_RUNTIME_DIR/exanet/pfd.sock unless the caller is root, and the machine's own,
// /run/exanet/pfd.sock; else the one that a pfd would create here.
func DefaultSocket() (string, error) {
	path, err := sockets.Find()
	if err != nil {
		return "", fmt.Errorf("pfd's socket: %w", err)
	}
	return path, nil
}
