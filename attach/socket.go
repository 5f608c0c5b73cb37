package attach

import (
	"fmt"

	"github.com/exanet/pfd/internal/sockets"
)

// SocketSuffix makes the attachment socket's path of the control socket's
// (spec/api.md, Daemon).
const SocketSuffix = sockets.AttachSuffix

// DefaultSocket gives the path of pfd's control socket when nobody names one
// (spec/api.md, Daemon): $RUNTIME_DIRECTORY/pfd.sock, else /run/exanet/pfd.sock
// for root, else $XDG_RUNTIME_DIR/exanet/pfd.sock; where nothing stands there, the
// machine's own, /run/exanet/pfd.sock.
func DefaultSocket() (string, error) {
	path, err := sockets.Find()
	if err != nil {
		return "", fmt.Errorf("no socket named, and %w: name pfd's socket (its --socket)", err)
	}
	return path, nil
}
