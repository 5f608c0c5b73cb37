package gup

import (
	"os"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/proc/proctest"
)

func TestMain(m *testing.M) { os.Exit(proctest.Main(m)) }

const page = device.PageSize

// start starts a child and a pager for it.
func start(t testing.TB) (*proctest.Child, *proc.Process, *Pager) {
	t.Helper()
	c := proctest.Start(t)
	p := open(t, c.PID(), c.Keeper())
	return c, p, New(p)
}

func open(t testing.TB, pid, keeper int) *proc.Process {
	t.Helper()
	p, err := proc.Open(proctest.PIDFD(t, pid), proctest.PIDFD(t, keeper))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}
