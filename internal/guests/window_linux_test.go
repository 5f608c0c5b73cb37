package guests

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/qemu"
	"github.com/exanet/pfd/space/shadow"
)

// smallMemory is the memory of a guest in TestThroughASmallWindow; its pfd may map smallWindow
// of it for a node.
const (
	smallMemory = 256 << 20
	smallWindow = 16 << 20
)

// shrink reduces a guest's memory: the rest becomes unused huge pages.
func (f *fleet) shrink(guest int, to uint64) {
	f.t.Helper()
	out := f.run(guest, "sh", "-c", fmt.Sprintf(`all=$(sed -n 's/MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)
n=$(((all - %d) / 2048)); echo $n >/proc/sys/vm/nr_hugepages; echo $all $n $(cat /proc/sys/vm/nr_hugepages)`, to>>10))
	var all, want, got uint64
	if _, err := fmt.Sscan(out, &all, &want, &got); err != nil || got < want {
		f.t.Fatalf("a guest of %d kB was asked for %d huge pages and reserved %d: %v", all, want, got, err)
	}
	f.t.Logf("of %d kB %d are left", all, all-got*2048)
}

// swap adds a swap disk to a guest.
func (f *fleet) swap(guest int, size int64) {
	f.t.Helper()
	path := filepath.Join(f.Dir, "swap")
	file, err := os.Create(path)
	if err == nil {
		err = file.Truncate(size)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	_ = file.Close()
	c, err := net.Dial("unix", filepath.Join(f.Dir, "guest"+strconv.Itoa(guest), "qmp.sock"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	dec := json.NewDecoder(c)
	for i, command := range []object{
		nil, // the greeting
		{"execute": "qmp_capabilities"},
		{"execute": "blockdev-add", "arguments": object{"driver": "file", "node-name": "swap", "filename": path}},
		{"execute": "device_add", "arguments": object{"driver": "nvme", "id": "swap", "drive": "swap", "serial": "swap", "bus": "rp3"}},
	} {
		if i > 0 {
			err = json.NewEncoder(c).Encode(command)
		}
		var answer object
		for err == nil && answer["QMP"] == nil && answer["return"] == nil {
			answer = nil
			if err = dec.Decode(&answer); answer["error"] != nil {
				f.t.Fatalf("%v: %v", command, answer)
			}
		}
		if err != nil {
			f.t.Fatal(err)
		}
	}
	f.run(guest, "sh", "-c", "until [ -b /dev/nvme0n1 ]; do sleep 0.05; done; mkswap /dev/nvme0n1 && swapon /dev/nvme0n1")
}

// sizeVariable is how many MiB TestThroughASmallWindow writes.
const sizeVariable = "PFD_WINDOW_MIB"

// A guest of 256 MiB writes more shared memory than its pfd may map for a node, and with
// sizeVariable more than the guest has. Every byte is right, and the pinned memory never
// exceeds the limit, which the kernel enforces. The same limit makes a map of twice the size
// fail.
func TestThroughASmallWindow(t *testing.T) {
	mib := 24
	if s := os.Getenv(sizeVariable); s != "" {
		var err error
		if mib, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	f := boot(t, qemu.Options{Guests: 1, Nodes: 3})
	to := f.install(0)
	f.swap(0, 2<<30)
	f.shrink(0, smallMemory)
	bound := 2 * shadow.Bound(smallWindow)
	devices := f.startPFD(0, 3, 2, fmt.Sprintf("%s limited %d", to, bound), append([]string{"--window", strconv.Itoa(smallWindow)}, slow...)...)
	most := f.background(0, "sh", "-c", `most=0
while p=$(pidof pfd); do
	now=$(sed -n 's/^Vm\(Lck\|Pin\):[^0-9]*\([0-9]*\) kB/\2/p' /proc/$p/status | (s=0; while read n; do s=$((s + n)); done; echo $s))
	[ $now -le $most ] || most=$now
	sleep 0.1
done 2>/dev/null
echo $most`)
	began := time.Now()
	p := f.pair(0, "pa")
	size := uint64(mib) << 20
	p.from.do(object{"op": "prepare", "prepare": object{"state": "present", "size": size, "seed": 1, "unproven": true}})
	remote := p.to.do(object{"op": "prepare", "prepare": object{"state": "absent", "size": size, "seed": 2, "unproven": true}}).Remote
	p.from.write(t, remote, mib, object{"waiting": "wait", "timeout_ns": time.Hour.Nanoseconds()})
	// Some of the pages are in swap.
	v := p.to.do(object{"op": "verify", "verify": object{"arrived": true, "source": object{"state": "present", "seed": 1}, "source_data": guard}}).Verdict
	if v.Wrong != 0 {
		t.Errorf("%d bytes are wrong, the first at %d", v.Wrong, v.First)
	}
	took := time.Since(began)
	p.close()
	swaps := f.run(0, "sh", "-c", "grep pswpout /proc/vmstat; kill $(pidof pfd)")
	out, err := most()
	var kb uint64
	if _, e := fmt.Sscan(out, &kb); e != nil || err != nil || kb == 0 || kb<<10 > bound {
		t.Errorf("pinned at most %q kB of %d, %v", out, bound>>10, err)
	}
	t.Logf("%d MiB in %.1f s; pinned at most %d kB of %d kB; %s", mib, took.Seconds(), kb, bound>>10, strings.TrimSpace(swaps))
	out, err = f.try(0, to, "limited", strconv.FormatUint(bound, 10), to, "map-pages", devices[2], strconv.FormatUint(2*bound/4096, 10))
	if err == nil || !strings.Contains(out, "limit of locked memory") {
		t.Errorf("mapping twice the bound: %v: %s", err, out)
	}
}
