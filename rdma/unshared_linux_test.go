package rdma

import (
	"errors"
	"strings"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
)

// If the node can access shared memory only, the error of an address names just the memory that
// was not shared.
func TestUnsharedCause(t *testing.T) {
	for _, c := range []struct {
		name   string
		caps   uint64
		shares [][2]uint64
		cause  string
	}{
		{"nothing shared", 0, nil, "0x10000 of this process"},
		{"half of it", 0, [][2]uint64{{0x10000, 0x1000}}, "0x11000 of this process"},
		{"all of it, by two shares", 0, [][2]uint64{{0x11000, 0x1000}, {0xf000, 0x2000}}, "check the target's"},
		{"a node that sees all memory", device.CapsSVA, nil, ""},
	} {
		e := &Endpoint{welcome: attach.Welcome{Grant: attach.Grant{Caps: c.caps}}}
		for _, s := range c.shares {
			e.noteShare(attach.Shared{VA: device.VA(s[0]), Size: s[1], Answered: attach.TypeShare})
		}
		e.noteShare(attach.Shared{VA: 0x10000, Size: 1, Answered: attach.TypeInvalidate})
		tr := &Transfer{ep: e, own: 0x10000, size: 0x2000, dst: 0x90000}
		tr.settle(failed|uint32(device.StatusDecode), "")
		err := tr.Err()
		if err == nil || !errors.Is(err, ErrAddress) || !strings.Contains(err.Error(), c.cause) || strings.Contains(err.Error(), "long enough") == strings.Contains(c.cause, "of this process") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	e := &Endpoint{}
	e.noteShare(attach.Shared{VA: 0x10000, Size: 0x2000, Answered: attach.TypeShare})
	e.noteShare(attach.Shared{VA: 0x10000, Size: 0x2000, Answered: attach.TypeUnshare})
	if len(e.shares) != 0 {
		t.Errorf("after Unshare: %v", e.shares)
	}
}
