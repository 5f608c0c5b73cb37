package daemon_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/space/shadow"
)

// Under the package's unit pfd can open a device behind the kernel's VFIO, and may lock the
// windows and the tables of its nodes, and not more.
func TestUnitLetsPin(t *testing.T) {
	b, err := os.ReadFile("../contrib/systemd/pfd.service")
	if err != nil {
		t.Fatal(err)
	}
	unit := string(b)
	m := regexp.MustCompile(`(?m)^LimitMEMLOCK=(\d+)M$`).FindStringSubmatch(unit)
	if m == nil {
		t.Fatal("no LimitMEMLOCK in the unit")
	}
	limit, err := strconv.ParseUint(m[1], 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	if want := uint64(daemon.Default().Nodes) * shadow.Bound(shadow.DefaultWindow); limit<<20 != want {
		t.Errorf("LimitMEMLOCK is %d MiB, windows and tables of the nodes are %d MiB", limit, want>>20)
	}
	for _, line := range []string{"DevicePolicy=closed", "DeviceAllow=/dev/vfio/vfio rw", "DeviceAllow=char-vfio* rw", "DeviceAllow=/dev/iommu rw", "CapabilityBoundingSet="} {
		if !strings.Contains(unit, "\n"+line+"\n") {
			t.Errorf("no %q in the unit", line)
		}
	}
	if strings.Contains(unit, "\nPrivateDevices=yes") {
		t.Error("PrivateDevices hides /dev/vfio")
	}
}
