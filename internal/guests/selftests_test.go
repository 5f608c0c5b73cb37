package guests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/qemu"
	"github.com/exanet/pfd/qemu/agent"
	"github.com/exanet/pfd/qemu/guest"
)

// totals matches the last line of the kernel's test programs
// (tools/testing/selftests/kselftest.h, ksft_print_cnts).
var totals = regexp.MustCompile(`(?m)^# Totals: pass:(\d+) fail:(\d+) xfail:(\d+) xpass:(\d+) skip:(\d+) error:(\d+)`)

// selftests are the kernel's tests of VFIO, and how many of each pass and are skipped, with the
// reason.
var selftests = []struct {
	name       string
	pass, skip int
	why        string // reason of each skipped test
}{
	{"vfio_pci_device_test", 4, 1, "MSI"}, // a node has only MSI-X
	{"vfio_iommufd_setup_test", 6, 0, ""},
	{"vfio_dma_mapping_test", 25, 5, "hugetlb 1gb"}, // the guest's processor supports no pages of 1 GiB
	{"vfio_dma_mapping_mmio_test", 15, 0, ""},
	{"vfio_pci_device_init_perf_test", 5, 0, ""},
	{"vfio_pci_driver_test", 35, 0, ""}, // with the driver of qemu/selftests
}

// The kernel's own tests of VFIO judge the device independently: they map, reset, interrupt,
// and with our driver let it copy memory, by each kind of container and by iommufd.
func TestKernelSelftests(t *testing.T) {
	usable(t)
	dir, err := cache.Selftests()
	unavailable(t, err)
	f := boot(t, qemu.Options{Guests: 1, Nodes: 1, Modules: guest.SetIOMMUFD})
	addr := strings.TrimSpace(f.run(0, "exanetctl", "bind", "--all", "--wait", "1"))
	f.run(0, "sh", "-c", "echo 16 >/proc/sys/vm/nr_hugepages; ulimit -l unlimited")
	for _, c := range selftests {
		t.Run(c.name, func(t *testing.T) {
			f := &fleet{t, f.Fleet}
			f.put(0, filepath.Join(dir, c.name), "/tmp/"+c.name)
			began := time.Now()
			// It limits each of its tests itself, to more than patience.
			ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
			defer cancel()
			var text strings.Builder
			code, err := f.Run(ctx, 0, agent.Command{Exec: agent.Exec{Args: []string{"/tmp/" + c.name, addr}}, Stdout: &text, Stderr: &text})
			out := text.String()
			m := totals.FindStringSubmatch(out)
			if m == nil {
				t.Fatalf("%v:\n%s", err, out)
			}
			t.Logf("%s (%.1f s)", m[0], time.Since(began).Seconds())
			count := func(i int) int { n, _ := strconv.Atoi(m[i]); return n } // digits: they match
			if err != nil || code != 0 || count(1) != c.pass || count(5) != c.skip || count(2)+count(3)+count(4)+count(6) != 0 {
				t.Errorf("exit code %d, %v, want %d passed and %d skipped:\n%s", code, err, c.pass, c.skip, out)
			}
			t.Log(strings.Join(regexp.MustCompile(`(?m)^ok .* # SKIP.*$`).FindAllString(out, -1), "\n"))
		})
	}
}

// put copies an executable file into a guest.
func (f *fleet) put(guest int, from, to string) {
	f.t.Helper()
	in, err := os.Open(from)
	if err != nil {
		f.t.Fatal(err)
	}
	defer in.Close()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	code, err := f.Run(ctx, guest, agent.Command{Exec: agent.Exec{Args: []string{"sh", "-c", fmt.Sprintf("cat >%[1]s && chmod +x %[1]s", to)}}, Stdin: in})
	if err != nil || code != 0 {
		f.t.Fatalf("%s of guest %d: exit code %d, %v", to, guest, code, err)
	}
}
