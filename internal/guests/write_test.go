package guests

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/exanet/pfd/qemu"
	"github.com/exanet/pfd/qemu/guest"
)

// seen has the counters of a guest.
type seen struct {
	faults, rapfs, interrupts uint64
}

// vector matches a line of /proc/interrupts: vfio-pci's count of a vector.
var vector = regexp.MustCompile(`(?m)^ *\d+:((?: +\d+)+) .*vfio-msix\[\d\]`)

// count reads a guest's counters.
func (f *fleet) count(guest int) seen {
	f.t.Helper()
	var s seen
	var counters struct {
		Counters []struct {
			Name  string
			Value uint64
		}
	}
	f.answer(guest, &counters, "counter")
	for _, c := range counters.Counters {
		switch c.Name {
		case "faults_total":
			s.faults += c.Value
		case "rapf_rx_total":
			s.rapfs += c.Value
		}
	}
	for _, m := range vector.FindAllStringSubmatch(f.run(guest, "cat", "/proc/interrupts"), -1) {
		for _, n := range strings.Fields(m[1]) {
			v, err := strconv.ParseUint(n, 10, 64)
			if err != nil {
				f.t.Fatal(err)
			}
			s.interrupts += v
		}
	}
	return s
}

// Two guests have a node each. A process in one writes into untouched memory of a process in
// the other, and reads it back.
func TestTwoGuests(t *testing.T) {
	f := boot(t, qemu.Options{Guests: 2, Nodes: 1, PFD: slow})
	var ends [2]*process
	for i := range ends {
		ends[i] = f.start(i)
		defer ends[i].close()
		var nodes struct {
			Nodes []struct {
				NodeID uint32 `json:"node_id"`
			}
		}
		f.answer(i, &nodes, "node")
		if len(nodes.Nodes) != 1 {
			t.Fatalf("guest %d has nodes %+v", i, nodes)
		}
		ends[i].do(object{"op": "attach", "attach": object{"socket": "/run/exanet/pfd.sock", "node_id": nodes.Nodes[0].NodeID, "group": qemu.Group, "method": "gup", "policy": "p1"}})
	}
	for n, size := range []uint64{4 << 10, 1 << 20} {
		t.Run(fmt.Sprintf("%d KiB", size>>10), func(t *testing.T) {
			pages := size >> 12
			before := [2]seen{f.count(0), f.count(1)}
			from := object{"state": "present", "size": size, "seed": 2*n + 1}
			to := object{"state": "absent", "size": size, "seed": 2*n + 2}
			ends[0].do(object{"op": "prepare", "prepare": from})
			remote := ends[1].do(object{"op": "prepare", "prepare": to}).Remote
			transfer(t, ends[0], remote, false)
			verify(t, ends[1], object{"state": "present", "seed": 2*n + 1}, pages)
			after := [2]seen{f.count(0), f.count(1)}
			t.Logf("writing: %+v to %+v", before, after)
			if after[1].faults == before[1].faults || after[0].rapfs == before[0].rapfs {
				t.Errorf("writing into absent memory caused no fault at guest 1, or no RAPF reached guest 0: %+v, then %+v", before, after)
			}
			for i := range ends {
				if after[i].interrupts == before[i].interrupts {
					t.Errorf("guest %d had no interrupt: %+v, then %+v", i, before[i], after[i])
				}
			}
			// And back, into untouched memory of guest 0. The bytes that guest 1 now has are
			// those of the first buffer.
			ends[0].do(object{"op": "prepare", "prepare": object{"state": "absent", "size": size, "seed": 2*n + 3}})
			transfer(t, ends[0], remote, true)
			verify(t, ends[0], object{"state": "present", "seed": 2*n + 1}, pages)
		})
	}
}

func transfer(t testing.TB, p *process, remote string, read bool) {
	t.Helper()
	p.write(t, remote, 1, object{"waiting": "wait", "timeout_ns": patience.Nanoseconds(), "read": read})
}

// guard is the number of bytes before the data of a buffer (internal/workload/buffer.go).
const guard = 4 << 10

// verify checks every byte of the buffer and of the guards around it.
func verify(t testing.TB, p *process, source object, pages uint64) {
	t.Helper()
	v := p.do(object{"op": "verify", "verify": object{"arrived": true, "source": source, "source_data": guard}}).Verdict
	if v.Wrong != 0 || v.Missing != 0 || uint64(v.Resident) != pages {
		t.Fatalf("the buffer holds %+v, want every byte right on %d pages", v, pages)
	}
}

// Nodes by iommufd and its device file. pfd pins pages of a file without mapping them in its
// own address space.
func TestIOMMUFD(t *testing.T) {
	f := boot(t, qemu.Options{Guests: 1, Nodes: 2, Modules: guest.SetIOMMUFD, PFD: slow})
	if fds := f.run(0, "sh", "-c", "ls -l /proc/$(pidof pfd)/fd"); !strings.Contains(fds, "/dev/vfio/devices/vfio0") || !strings.Contains(fds, "/dev/iommu") || strings.Contains(fds, "/dev/vfio/vfio") {
		t.Errorf("pfd has open\n%s", fds)
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
	// IOMMU_IOAS_MAP pins like type 1, and counts in VmPin, too. Pages mapped before would be
	// in VmRSS.
	var lock, pin, rss uint64
	status := f.run(0, "sh", "-c", "cat /proc/$(pidof pfd)/status")
	for name, v := range map[string]*uint64{"VmLck": &lock, "VmPin": &pin, "VmRSS": &rss} {
		_, rest, _ := strings.Cut(status, name+":")
		if _, err := fmt.Sscan(rest, v); err != nil {
			t.Fatalf("%s in %s: %v", name, status, err)
		}
	}
	if lock != 0 || pin == 0 {
		t.Errorf("VmLck %d kB, VmPin %d kB, VmRSS %d kB: want all that is pinned in VmPin", lock, pin, rss)
	}
}
