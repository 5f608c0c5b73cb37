package control

import (
	"errors"
	"fmt"
	"strings"

	"github.com/exanet/pfd/internal/sockets"
)

// AttachSuffix is appended to the control socket's name to form the attachment socket's
// (spec/api.md).
const AttachSuffix = sockets.AttachSuffix

// maxSocketPath is the longest name of a unix socket: sun_path has 108 bytes, the last for the
// zero (unix(7)).
const maxSocketPath = 107

// ErrSocketPath says that a socket's path cannot be used.
var ErrSocketPath = errors.New("socket path not usable")

// MetricsSocket returns the name of the metrics socket beside a control socket.
func MetricsSocket(socket string) string { return socket + sockets.MetricsSuffix }

// HostsSocket returns the name of the socket of exanet-hostd beside a control socket.
func HostsSocket(socket string) string { return socket + sockets.HostsSuffix }

// AttachSocket returns the name of the attachment socket beside a control socket.
func AttachSocket(socket string) string { return socket + AttachSuffix }

// CheckSocket returns an error, which matches ErrSocketPath, unless the names of a control socket
// and of the sockets beside it fit a socket address.
func CheckSocket(socket string) error {
	if socket == "" {
		return fmt.Errorf("%w: the name is empty: give --socket PATH", ErrSocketPath)
	}
	if n := len(MetricsSocket(socket)); n > maxSocketPath {
		return fmt.Errorf("%w: %s%s has %d bytes, a unix socket's name at most %d: choose a --socket PATH of at most %d bytes",
			ErrSocketPath, socket, sockets.MetricsSuffix, n, maxSocketPath, maxSocketPath-len(sockets.MetricsSuffix))
	}
	if strings.IndexByte(socket, 0) >= 0 {
		return fmt.Errorf("%w: %q contains a zero byte", ErrSocketPath, socket)
	}
	return nil
}

// DefaultSocket returns the control socket of a pfd without --socket: $RUNTIME_DIRECTORY/pfd.sock,
// else /run/exanet/pfd.sock for root, else $XDG_RUNTIME_DIR/exanet/pfd.sock. Its error matches
// ErrSocketPath.
func DefaultSocket() (string, error) {
	return named(sockets.Default())
}

// FindSocket returns the control socket of a client without --socket: the first that exists in the
// directories of RUNTIME_DIRECTORY, for a user other than root in XDG_RUNTIME_DIR, and the
// machine's own, /run/exanet/pfd.sock; else DefaultSocket. Its error matches ErrSocketPath.
func FindSocket() (string, error) {
	return named(sockets.Find())
}

func named(path string, err error) (string, error) {
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrSocketPath, err)
	}
	return path, nil
}
