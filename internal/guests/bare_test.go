package guests

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/qemu"
	"github.com/exanet/pfd/qemu/guest"
)

// across starts a process in each of two guests, attached to their nodes. end ends both.
func (f *fleet) across() (ends [2]*process, end func()) {
	f.t.Helper()
	for i := range ends {
		ends[i] = f.start(i)
		var nodes struct {
			Nodes []struct {
				NodeID uint32 `json:"node_id"`
			}
		}
		f.answer(i, &nodes, "node")
		if len(nodes.Nodes) != 1 {
			f.t.Fatalf("guest %d has nodes %+v", i, nodes)
		}
		ends[i].do(object{"op": "attach", "attach": object{"socket": "/run/exanet/pfd.sock", "node_id": nodes.Nodes[0].NodeID, "group": qemu.Group, "method": "gup", "policy": "p1"}})
	}
	return ends, func() {
		f.t.Helper()
		for _, p := range ends {
			p.close()
		}
	}
}

// hugeFree returns how many huge pages of a guest are free.
func (f *fleet) hugeFree(guest int) int {
	f.t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(f.run(guest, "sh", "-c", "sed -n 's/^HugePages_Free: *//p' /proc/meminfo")))
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

// exchange makes a process write into untouched memory of the other and read it back into
// untouched memory of its own. The faults, and if huge is set the guest's free huge pages, show
// that the memory was untouched.
func (f *fleet) exchange(ends [2]*process, huge bool) {
	t := f.t
	for n, size := range []uint64{4 << 10, 1 << 20} {
		pages := size >> device.PageShift
		from := object{"state": "present", "size": size, "seed": 2*n + 1}
		to := object{"state": "absent", "size": size, "seed": 2*n + 2}
		ends[0].do(object{"op": "prepare", "prepare": from})
		remote := ends[1].do(object{"op": "prepare", "prepare": to}).Remote
		before, free := f.count(1), 0
		if huge {
			free = f.hugeFree(1)
		}
		transfer(t, ends[0], remote, false)
		after := f.count(1)
		if huge {
			if now := f.hugeFree(1); now >= free {
				t.Errorf("%d bytes: guest 1 has %d huge pages free, %d before: the memory was touched before", size, now, free)
			}
		}
		verify(t, ends[1], object{"state": "present", "seed": 2*n + 1}, pages)
		if after.faults == before.faults {
			t.Errorf("%d bytes: writing into absent memory caused no fault at guest 1", size)
		}
		ends[0].do(object{"op": "prepare", "prepare": object{"state": "absent", "size": size, "seed": 2*n + 3}})
		transfer(t, ends[0], remote, true)
		verify(t, ends[0], object{"state": "present", "seed": 2*n + 1}, pages)
		t.Logf("%d bytes: %d faults at guest 1", size, after.faults-before.faults)
	}
}

// refusesSmallPages checks that memory that may move cannot be shared: a device without an
// IOMMU uses physical addresses.
func refusesSmallPages(t testing.TB, p *process) {
	t.Helper()
	if err := json.NewEncoder(p.in).Encode(object{"op": "prepare", "prepare": object{"state": "absent", "size": 4096, "page": 4096}}); err != nil {
		t.Fatal(err)
	}
	var r reply
	if err := p.dec.Decode(&r); err != nil || !strings.Contains(r.Error, "physical addresses") || !strings.Contains(r.Error, "MFD_HUGETLB") {
		t.Errorf("sharing a memfd of small pages: %q, %v: want a refusal with the reason", r.Error, err)
	}
}

// A node behind UIO, which provides no vectors, enables no bus mastering and maps nothing.
func TestUIO(t *testing.T) {
	f := boot(t, qemu.Options{Guests: 2, Nodes: 1, Machine: qemu.MachineBare, UIO: true, PFD: slow})
	addr := strings.TrimSpace(f.run(0, "sh", "-c", "basename /sys/bus/pci/drivers/uio_pci_generic/0*"))
	files := f.run(0, "sh", "-c", "ls -l /proc/$(pidof pfd)/fd")
	if !strings.Contains(files, "/dev/uio0") || strings.Contains(files, "/dev/vfio") {
		t.Errorf("pfd has open\n%s", files)
	}
	ends, end := f.across()
	defer end()
	f.exchange(ends, true)
	refusesSmallPages(t, ends[0])

	// A killed pfd leaves the device with bus mastering off, and the next pfd works.
	const masterOff = "dd if=/sys/bus/pci/devices/%s/config bs=1 skip=4 count=1 2>/dev/null | hexdump -v -e '1/1 \"%%d\"'"
	master := func() bool {
		n, err := strconv.Atoi(f.run(0, "sh", "-c", fmt.Sprintf(masterOff, addr)))
		if err != nil {
			t.Fatal(err)
		}
		return n&(1<<2) != 0
	}
	line := strings.TrimSpace(f.run(0, "sh", "-c", "tr '\\0' ' ' </proc/$(pidof pfd)/cmdline"))
	if !master() {
		t.Error("bus mastering is off")
	}
	second := strings.Fields(strings.Replace(line, "pfd", "pfd --socket /run/second.sock", 1))
	if out, err := f.try(0, second...); err == nil || !strings.Contains(out, "another process has the device") || !strings.Contains(out, "fuser -v /dev/uio0") {
		t.Errorf("a second pfd: %q, %v", out, err)
	}
	f.run(0, "sh", "-c", "kill -9 $(pidof pfd)")
	until(t, "bus mastering is off", func() bool { return !master() })
	f.begin(0, line+" --registers")
	ends, endLast := f.across()
	defer endLast()
	f.exchange(ends, true)

	f.run(0, "sh", "-c", "kill $(pidof pfd)")
	until(t, "pfd ends", func() bool { _, err := f.try(0, "pidof", "pfd"); return err != nil })
	f.run(0, "exanetctl", "unbind", "--all")
	if out, err := f.try(0, strings.Fields(line)...); err == nil || !strings.Contains(out, "not bound to a UIO driver: exanetctl bind --driver uio_pci_generic "+addr) {
		t.Errorf("pfd on an unbound device: %q, %v", out, err)
	}
}

// begin starts a pfd in a guest by a command line.
func (f *fleet) begin(guest int, line string) {
	f.t.Helper()
	f.run(guest, "sh", "-c", "ulimit -l unlimited; "+line+" >/run/pfd.log 2>&1 & p=$!; until exanetctl status >/dev/null 2>&1; do kill -0 $p || { cat /run/pfd.log; exit 1; }; sleep 0.05; done")
}

// VFIO without an IOMMU. Debian's kernels are built without it, so the test builds the modules.
func TestNoIOMMU(t *testing.T) {
	f := boot(t, qemu.Options{Guests: 2, Nodes: 1, Machine: qemu.MachineBare, Modules: guest.SetIOMMUFD, PFD: slow})
	files := f.run(0, "sh", "-c", "ls -l /proc/$(pidof pfd)/fd")
	if !strings.Contains(files, "/dev/vfio/noiommu-0") {
		t.Errorf("pfd has open\n%s", files)
	}
	before := f.count(1).interrupts
	ends, end := f.across()
	defer end()
	f.exchange(ends, true)
	if after := f.count(1).interrupts; after == before {
		t.Error("guest 1 had no interrupt")
	}
	refusesSmallPages(t, ends[0])

	line := strings.TrimSpace(f.run(0, "sh", "-c", "tr '\\0' ' ' </proc/$(pidof pfd)/cmdline"))
	f.run(0, "sh", "-c", "kill $(pidof pfd)")
	until(t, "pfd ends", func() bool { _, err := f.try(0, "pidof", "pfd"); return err != nil })
	out, err := f.try(0, strings.Fields(strings.Replace(line, "--unsafe-noiommu", "", 1))...)
	if err == nil || !strings.Contains(out, "no IOMMU") || !strings.Contains(out, "--unsafe-noiommu") {
		t.Errorf("pfd without the flag: %q, %v", out, err)
	}
}

// Debian's own modules have no no-IOMMU mode: bind reports that and suggests UIO.
func TestNoIOMMUStock(t *testing.T) {
	f := boot(t, qemu.Options{Guests: 1, Nodes: 1, Machine: qemu.MachineBare, UIO: true, PFD: slow})
	f.run(0, "sh", "-c", "kill $(pidof pfd)")
	until(t, "pfd ends", func() bool { _, err := f.try(0, "pidof", "pfd"); return err != nil })
	addr := strings.TrimSpace(f.run(0, "sh", "-c", "basename /sys/bus/pci/drivers/uio_pci_generic/0*"))
	out, err := f.try(0, "exanetctl", "bind", addr)
	if err == nil || !strings.Contains(out, "no IOMMU") || !strings.Contains(out, "exanetctl bind --driver uio_pci_generic "+addr+", pfd --device uio:"+addr) {
		t.Errorf("bind: %q, %v", out, err)
	}
}

// arm builds the programs for arm64. It returns why arm64 guests cannot be booted.
func arm(t *testing.T) error {
	t.Helper()
	prepare := func() error { return cache.Prepare(t.Context(), qemu.Small, qemu.MachineARM) }
	if err := prepare(); errors.Is(err, qemu.ErrNotSetUp) {
		return err // whatever the programs are, no guest can boot
	}
	c := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(bin, qemu.MachineARM)+"/", "../../cmd/pfd", "../../cmd/exanetctl")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=arm64")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build for arm64: %v\n%s", err, out)
	}
	return prepare()
}

// A guest on arm64, where the IOMMU is virtio-iommu.
func TestARM(t *testing.T) {
	usable(t)
	unavailable(t, arm(t))
	f := boot(t, qemu.Options{Guests: 1, Nodes: 2, Machine: qemu.MachineARM, PFD: slow})
	if m := strings.TrimSpace(f.run(0, "uname", "-m")); m != "aarch64" {
		t.Errorf("the guest is %s", m)
	}
	if iommu := strings.Fields(f.run(0, "sh", "-c", "ls /sys/class/iommu; ls -d /sys/bus/virtio/drivers/virtio_iommu/virtio*")); len(iommu) != 2 {
		t.Errorf("its IOMMUs are %q, want one of virtio", iommu)
	}
	for _, size := range []string{"4KiB", "1MiB"} {
		var r struct {
			Verified bool
			Faults   uint64
		}
		f.answer(0, &r, "write", "--dst", "absent", "--size", size)
		if !r.Verified || r.Faults == 0 {
			t.Errorf("%s: %+v", size, r)
		}
	}
	if s := f.count(0); s.faults == 0 || s.rapfs == 0 || s.interrupts == 0 {
		t.Errorf("the guest counts %+v, want faults, RAPFs and interrupts", s)
	}
}
