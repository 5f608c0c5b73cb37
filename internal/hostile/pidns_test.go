package hostile

import (
	"os"
	"syscall"
	"testing"
)

// Processes whose numbers mean nothing to pfd, nor pfd's to them, are served by
// every method.
func TestOtherPIDNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a PID namespace needs root")
	}
	for _, method := range methods {
		t.Run(method, func(t *testing.T) {
			w := start(t)
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
