package guests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// rxeKernel is one of Debian's that has rdma_rxe with on-demand paging; that for clouds,
// which the other tests boot, has none.
const rxeKernel = "7.2-amd64"

// rxe builds the program of verbs, without libraries.
func rxe(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rxe")
	out, err := exec.Command("cc", "-static", "-O2", "-Wall", "-Wextra", "-Werror", "-DRDMA_STATIC_PROVIDERS=rxe", "-o", path, "testdata/rxe.c",
		"-Wl,--start-group", "-lrxe-rdmav34", "-libverbs", "-lnl-route-3", "-lnl-3", "-lpthread", "-Wl,--end-group").CombinedOutput()
	if err != nil {
		unavailable(t, fmt.Errorf("a program of verbs cannot be built: %w: %s: apt-get install gcc libc6-dev libibverbs-dev libnl-route-3-dev", err, out))
	}
	return path
}

func TestRXE(t *testing.T) {
	_ = os.Args
	f := bootKernel(t, rxeKernel)
	f.put(0, rxe(t), "/tmp/rxe")
	t.Log(f.try(0, "sh", "-c", "exanetctl guest --help; lsmod; ls /dev/infiniband; dmesg | tail -5"))
	t.Log(f.try(0, "sh", "-c", "(echo; sleep 20; echo; sleep 20) | /tmp/rxe lo"))
}
