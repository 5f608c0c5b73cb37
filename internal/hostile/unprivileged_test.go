package hostile

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/exanet/pfd/attach"
)

// unprivileged starts a pfd of a user without capabilities.
func unprivileged(t *testing.T, uid uint32, on place, args ...string) *world {
	t.Helper()
	needRoot(t, "becoming another user")
	as := &syscall.Credential{Uid: uid, Gid: uid}
	w := prepareAs(t, pfdProgram, nil, append(on.args(t, as), args...)...)
	w.shared = on.Shared
	if err := os.Chown(w.dir, int(uid), int(uid)); err != nil {
		t.Fatal(err)
	}
	w.credential = as
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	return w
}

// A pfd without privileges serves processes of its own user by every method that the kernel
// permits. For other methods it names the setting that forbids them. For other users see
// TestOtherUsersWithoutPrivilege.
func TestWithoutPrivilege(t *testing.T) { everywhere(t, withoutPrivilege) }

func withoutPrivilege(t *testing.T, on place) {
	const uid = 3100
	w := unprivileged(t, uid, on)
	b := w.bystander(attachOrder{UID: uid})
	for _, method := range methods {
		t.Run(method, func(t *testing.T) {
			w.during(t)
			group := "user-" + method
			from := w.attach("initiator", attachOrder{UID: uid, Group: group, Method: method})
			to := w.attach("target", attachOrder{UID: uid, Group: group, Method: method, Node: 1})
			m, err := to.do(order{Op: "buffer", ID: "b", Size: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			if m.Err != "" {
				if method != "uffd" || !strings.Contains(m.Err, "no userfaultfd for this user") {
					t.Fatalf("a buffer: %s", m.Err)
				}
				t.Skip(m.Err)
			}
			src := from.must(order{Op: "buffer", ID: "b", Size: 1 << 20, Seed: 7})
			_ = src
			from.write("x", "b", m.Remote, 1<<20)
			from.arrives("x")
			to.holds("b", 7, 0, 1<<20)
			from.kill()
			to.kill()
		})
	}
	// Another user's process does not trust this pfd by default.
	stranger := w.spawn("stranger", uid+1)
	r, err := stranger.do(order{Op: "attach", Attach: attachOrder{Socket: w.socket()}})
	if err != nil || !strings.Contains(r.Err, attach.ErrStranger.Error()) {
		t.Errorf("a process that does not trust this pfd's user: %q, %v", r.Err, err)
	}
	b.fine()
}
