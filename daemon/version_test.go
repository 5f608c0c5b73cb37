package daemon

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/exanet/pfd/attach"
)

// A pfd refuses a library of another version, names both versions to it, counts the refusal, and
// accepts the next process.
func TestLibraryOfAnotherVersion(t *testing.T) {
	for _, version := range []uint16{attach.Protocol - 1, attach.Protocol + 1, 0xffff} {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			r := start(t)
			c, err := attach.Dial(r.ctx(), r.attachSocket())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			h := hello()
			h.Product = "exanet 99.1"
			msg, err := h.Append(nil)
			if err != nil {
				t.Fatal(err)
			}
			binary.LittleEndian.PutUint16(msg[2:], version) // docs/attach.md 2
			if err := c.Send(msg); err != nil {
				t.Fatal(err)
			}
			var buf [attach.MaxMessage]byte
			n, fds, err := c.Receive(r.ctx(), buf[:])
			fds.Close()
			if err != nil || len(fds) != 0 {
				t.Fatalf("%d descriptors, %v", len(fds), err)
			}
			refused, err := attach.DecodeRefused(buf[:n])
			if err != nil || refused.Code != attach.CodeVersion || !errors.Is(refused, attach.ErrVersion) {
				t.Fatalf("%+v, %v", refused, err)
			}
			for _, s := range []string{"exanet 99.1", fmt.Sprintf("speaks %d", version), attach.Product(), fmt.Sprintf("speaks %d", attach.Protocol), "install"} {
				if !strings.Contains(refused.Text, s) {
					t.Errorf("%q does not say %q", refused.Text, s)
				}
			}
			r.until("the refusal is counted", func() bool { return r.refusals() == 1 })
			r.attach(hello())
		})
	}
}
