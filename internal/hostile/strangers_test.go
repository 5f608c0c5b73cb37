package hostile

import (
	"testing"
)

// A pfd of a user of its own, without any capability, serves other users'
// processes: their memory is reached by helpers of their own.
func TestOtherUsersWithoutPrivilege(t *testing.T) {
	needRoot(t, "being several users")
	const stranger, server = 3101, 3100
	w := unprivileged(t, server)
	trust := []uint32{server}
	b := w.bystander(attachOrder{UID: stranger, Trust: trust})
	for _, method := range methods {
		t.Run(method, func(t *testing.T) {
			w.during(t)
			group := "stranger-" + method
			from := w.attach("initiator", attachOrder{UID: stranger, Group: group, Method: method, Trust: trust})
			to := w.attach("target", attachOrder{UID: stranger, Group: group, Method: method, Trust: trust, Node: 1})
			m, err := to.do(order{Op: "buffer", ID: "b", Size: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			if m.Err != "" {
				t.Skip(m.Err) // no userfaultfd for this user
			}
			from.must(order{Op: "buffer", ID: "b", Size: 1 << 20, Seed: 7})
			from.write("x", "b", m.Remote, 1<<20)
			from.arrives("x")
			to.holds("b", 7, 0, 1<<20)
			from.kill()
			to.kill()
		})
	}
	b.fine()
}
