package hostile

import (
	"os"
	"syscall"
	"testing"
)

// Every method serves processes in another pid namespace, whose pids mean nothing to pfd.
func TestOtherPIDNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a PID namespace needs root")
	}
	everywhere(t, otherPIDNamespace)
}

func otherPIDNamespace(t *testing.T, on place) {
	for _, method := range methods {
		t.Run(method, func(t *testing.T) {
			w := on.start(t)
			w.namespaces = syscall.CLONE_NEWPID
			target := w.attach("target", attachOrder{Node: 1, Group: "apart", Method: method})
			from := w.attach("initiator", attachOrder{Group: "apart", Method: method})
			m := target.buffer("b", "anonymous", 256<<10, 0)
			from.buffer("b", "anonymous", 256<<10, 7)
			from.write("x", "b", m.Remote, 256<<10)
			from.arrives("x")
			target.holds("b", 7, 0, 256<<10)
		})
	}
}
