package hostile

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/exanet/pfd/control"
)

// unprivileged starts a pfd of a user without any capability.
func unprivileged(t *testing.T, uid uint32) *world {
	t.Helper()
	needRoot(t, "becoming another user")
	w := prepareAs(t, pfdProgram, nil)
	if err := os.Chown(w.dir, int(uid), int(uid)); err != nil {
		t.Fatal(err)
	}
	w.credential = &syscall.Credential{Uid: uid, Gid: uid}
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	return w
}

// A pfd without privilege serves processes of its own user by every method that
// the kernel lets it have; for the others it names the setting in the way.
func TestWithoutPrivilege(t *testing.T) {
	const uid = 3100
	w := unprivileged(t, uid)
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
				if method != "uffd" || !strings.Contains(m.Err, "vm.unprivileged_userfaultfd") {
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
	// Another user's process is out of its reach, and is told so.
	before := w.count(control.AllNodes, control.CounterRefused)
	stranger := w.spawn("stranger", uid+1)
	r, err := stranger.do(order{Op: "attach", Attach: attachOrder{Socket: w.socket()}})
	if err != nil || !strings.Contains(r.Err, "CAP_SYS_PTRACE") && !strings.Contains(r.Err, "may not open the socket") {
		t.Errorf("another user's process: %q, %v", r.Err, err)
	} else if strings.Contains(r.Err, "CAP_SYS_PTRACE") {
		w.saw(control.AllNodes, control.CounterRefused, before)
	}
	t.Logf("another user is told: %s", r.Err)
	b.fine()
}
