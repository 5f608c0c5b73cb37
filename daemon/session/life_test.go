package session

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
)

// An attachment ends for the reason that its connection broke off for.
func TestBrokenOff(t *testing.T) {
	for _, c := range []struct {
		err  error
		want attach.Reason
	}{
		{fmt.Errorf("x: %w", attach.ErrMessage), attach.ReasonProtocol},
		{fmt.Errorf("sending: %w", os.ErrDeadlineExceeded), attach.ReasonProtocol},
		{fmt.Errorf("sending: %w", unix.EPIPE), attach.ReasonClosed},
		{fmt.Errorf("reading: %w", unix.ENOMEM), attach.ReasonLost},
	} {
		if got := brokenOff(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}
