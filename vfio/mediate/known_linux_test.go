package mediate

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/vfio/user"
)

// TestRefusalsAreNotOthersErrors: a refused mapping that comes with the answer to another request
// is not an error of that request.
func TestRefusalsAreNotOthersErrors(t *testing.T) {
	refused := &user.MapError{Address: 0x1000, Size: 0x1000, Err: &user.Error{Command: user.CmdDMAMap, Errno: unix.EEXIST}}
	own := &user.Error{Command: user.CmdDMAUnmap, Errno: unix.EINVAL}
	for _, tc := range []struct {
		name    string
		err     error
		want    error
		careful bool
	}{
		{"nothing", nil, nil, false},
		{"its own", own, own, false},
		{"a refusal", refused, nil, true},
		{"two refusals", errors.Join(nil, refused, refused), nil, true},
		{"both", errors.Join(own, refused, user.ErrMapRefused), own, true},
	} {
		f := &userFunction{}
		got := f.withoutRefused(tc.err)
		if (got == nil) != (tc.want == nil) || !errors.Is(got, tc.want) || errors.Is(got, user.ErrMapRefused) || f.careful.Load() != tc.careful {
			t.Errorf("%s: %v, careful %v", tc.name, got, f.careful.Load())
		}
	}
}
