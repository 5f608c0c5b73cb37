package attach

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/exanet/pfd/internal/sockets"
)

// The environment decides; if it does not, the error says what to do.
func TestDefaultSocket(t *testing.T) {
	t.Setenv("RUNTIME_DIRECTORY", "/run/x:/run/y")
	if got, err := DefaultSocket(); got != "/run/x/pfd.sock" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	t.Setenv("RUNTIME_DIRECTORY", "")
	t.Setenv("XDG_RUNTIME_DIR", "")
	got, err := DefaultSocket()
	if os.Geteuid() == 0 {
		if got != "/run/exanet/pfd.sock" || err != nil {
			t.Errorf("as root: %q, %v", got, err)
		}
		return
	}
	if err == nil && got == sockets.Root {
		t.Skip("the machine's own pfd is there")
	}
	if !errors.Is(err, sockets.ErrNoDefault) || !strings.Contains(err.Error(), "--socket") {
		t.Errorf("%q, %v", got, err)
	}
}
