package attach

import (
	"fmt"

	"github.com/exanet/pfd/internal/sockets"
)

// SocketSuffix makes the attachment socket's path of the control socket's
// (spec/api.md, Daemon).
const SocketSuffix = sockets.AttachSuffix

// DefaultSocket returns the path of pfd's control socket when nobody names one
// (docs/attach.md, section 1): the first that exists of $RUNTIME_DIRECTORY/pfd.sock (in each
// of its directories), $XDG_RUNTIME_DIR/exanet/pfd.sock unless the caller is root, and the
// machine's own, /run/exanet/pfd.sock; else the one that a pfd would make here.
func DefaultSocket() (string, error) {
	path, err := sockets.Find()
	if err != nil {
		return "", fmt.Errorf("pfd's socket: %w", err)
	}
	return path, nil
}
