package examples

import (
	"os"
	"syscall"
	"testing"
)

// In its own PID namespace (a container) a client accepts the fault messages of its pfd.
func TestTransferInAPIDNamespace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make a PID namespace")
	}
	bin, client := build(t), start(t)
	for _, method := range []string{"touch", "populate"} {
		t.Run(method, func(t *testing.T) {
			transfer(t, bin, client, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, method, "100000", func(int) {})
		})
	}
}
