package proc

import (
	"os"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/proc/proctest"
)

func TestMain(m *testing.M) { os.Exit(proctest.Main(m)) }

const page = device.PageSize

// openChild opens a child by its keeper, with PROCMAP_QUERY or /proc/PID/maps.
func openChild(t testing.TB, c *proctest.Child, query bool) *Process {
	t.Helper()
	p, err := Open(c.PIDFDs())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	if query && !p.query {
		t.Skip("kernel without PROCMAP_QUERY (Linux 6.11)")
	}
	p.query = query
	return p
}

// both runs a test with each way to look up mappings.
func both(t *testing.T, f func(t *testing.T, query bool)) {
	t.Helper()
	t.Run("query", func(t *testing.T) { f(t, true) })
	t.Run("maps", func(t *testing.T) { f(t, false) })
}

// walk calls Walk, which must not fail.
func walk(t testing.TB, p *Process, va device.VA, pages int, write bool) Walk {
	t.Helper()
	w, err := p.Walk(va, pages, write)
	if err != nil {
		t.Fatal(err)
	}
	return w
}
