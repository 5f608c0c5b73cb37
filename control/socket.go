package control

import (
	"errors"
	"fmt"
	"strings"

	"github.com/exanet/pfd/internal/sockets"
)

// AttachSuffix is what the attachment socket's name has behind the control
// socket's (spec/api.md).
const AttachSuffix = sockets.AttachSuffix

// maxSocketPath is the longest name a unix socket can have: sun_path has 108
// bytes, the last for the zero (unix(7)).
const maxSocketPath = 107

// ErrSocketPath says that a socket's path cannot be used.
var ErrSocketPath = errors.New("socket path not usable")

// MetricsSocket gives the name of the metrics socket beside a control socket.
func MetricsSocket(socket string) string { return socket + sockets.MetricsSuffix }

// AttachSocket gives the name of the attachment socket beside a control socket.
func AttachSocket(socket string) string { return socket + AttachSuffix }

// CheckSocket tells whether a control socket of that name, and the sockets beside
// it, fit into a socket address. Its error matches ErrSocketPath.
func CheckSocket(socket string) error {
	if socket == "" {
		return fmt.Errorf("%w: the name is empty: give --socket PATH", ErrSocketPath)
	}
	if n := len(MetricsSocket(socket)); n > maxSocketPath {
		return fmt.Errorf("%w: %s%s has %d bytes, a unix socket's name at most %d: choose a --socket PATH of at most %d bytes",
			ErrSocketPath, socket, sockets.MetricsSuffix, n, maxSocketPath, maxSocketPath-len(sockets.MetricsSuffix))
	}
	if strings.IndexByte(socket, 0) >= 0 {
		return fmt.Errorf("%w: %q holds a zero byte", ErrSocketPath, socket)
	}
	return nil
}

// DefaultSocket gives the control socket that a pfd makes where --socket does
// not name one:
// $RUNTIME_DIRECTORY/pfd.sock, else /run/exanet/pfd.sock for root, else
// $XDG_RUNTIME_DIR/exanet/pfd.sock. Its error matches ErrSocketPath.
func DefaultSocket() (string, error) {
	return named(sockets.Default())
}

// FindSocket gives the control socket that a client asks where --socket does not
// name one: the first that exists of those in the directories of RUNTIME_DIRECTORY, for a
// user who is not root in XDG_RUNTIME_DIR, and the machine's own, /run/exanet/pfd.sock; else
// DefaultSocket. Its error matches ErrSocketPath.
func FindSocket() (string, error) {
	return named(sockets.Find())
}

func named(path string, err error) (string, error) {
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrSocketPath, err)
	}
	return path, nil
}
