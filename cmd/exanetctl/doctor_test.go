package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/folios"
)

// well is a machine on which everything works.
func well() facts {
	return facts{
		Kernel: [2]int{6, 12}, Release: "6.12.1", Caps: ^uint64(0), Yama: 1, UffdFull: true, UffdProtects: true,
		BTF: true, BPFFS: true, VFIO: true, IOMMUFD: true, IOMMUGroups: 3, UIO: 5, Memlock: ^uint64(0),
		FoliosShared: folios.Setting{Known: true, Sizes: "64 KiB"}, FoliosPrivate: folios.Setting{Known: true, Sizes: "64 KiB"}, DaemonText: "pfd 1 on /run/s, ready",
		Provider: "/usr/lib/x86_64-linux-gnu/libfabric/libexanet-fi.so",
	}
}

// linked is the answer of a pfd with another host.
func linked(state string) *control.Hosts {
	return &control.Hosts{Cluster: "lab", Self: "a", Hostd: true, Hosts: []control.Host{{Name: "b", State: state}}}
}

func TestJudge(t *testing.T) {
	for _, c := range well().judge() {
		if c.Verdict != verdictOK || c.Remedy != "" || c.Found == "" || c.Need == "" {
			t.Errorf("a machine without trouble: %+v", c)
		}
	}
	const noPtrace = ^uint64(1 << capSysPtrace)
	for _, c := range []struct {
		name, check, verdict string
		remedy               string // part of it
		edit                 func(*facts)
	}{
		{"old kernel", "kernel", verdictError, "6.5", func(f *facts) { f.Kernel = [2]int{6, 4} }},
		{"kernel of another age", "kernel", verdictOK, "", func(f *facts) { f.Kernel = [2]int{7, 0} }},
		{"no Yama, no capability", "ptrace", verdictOK, "", func(f *facts) { f.Yama, f.Caps = -1, noPtrace }},
		{"Yama 0", "ptrace", verdictOK, "", func(f *facts) { f.Yama, f.Caps = 0, noPtrace }},
		{"Yama 1", "ptrace", verdictOK, "", func(f *facts) { f.Caps = noPtrace }},
		{"Yama 2 without capability", "ptrace", verdictError, "ptrace_scope=1", func(f *facts) { f.Yama, f.Caps = 2, noPtrace }},
		{"Yama 2 with capability", "ptrace", verdictOK, "", func(f *facts) { f.Yama = 2 }},
		{"Yama 3 with capability", "ptrace", verdictError, "restart", func(f *facts) { f.Yama = 3 }},
		{"no pagemap", "pagemap", verdictError, "mount /proc", func(f *facts) { f.Pagemap = unix.ENOENT }},
		{"no kcmp", "kcmp", verdictWarning, "CONFIG_KCMP", func(f *facts) { f.Kcmp = unix.ENOSYS }},
		{"no process_vm", "process_vm", verdictError, "seccomp", func(f *facts) { f.ProcessVM = unix.ENOSYS }},
		{"no memfd", "memfd", verdictError, "memfd_create", func(f *facts) { f.Memfd = unix.ENOSYS }},
		{"no netlink", "netlink", verdictError, "gup", func(f *facts) { f.Netlink = unix.EACCES }},
		{"no populate", "populate", verdictError, "5.14", func(f *facts) { f.Populate = unix.EINVAL }},
		{"no pidfd of a peer", "peer-pidfd", verdictError, "6.5", func(f *facts) { f.PeerPidfd = unix.ENOPROTOOPT }},
		{"no PROCMAP_QUERY", "procmap-query", verdictWarning, "6.11", func(f *facts) { f.ProcmapQuery = unix.ENOTTY }},
		{"no PAGEMAP_SCAN", "pagemap-scan", verdictWarning, "6.7", func(f *facts) { f.PagemapScan = unix.ENOTTY }},
		{"no userfaultfd", "userfaultfd", verdictWarning, "CONFIG_USERFAULTFD", func(f *facts) { f.Uffd = unix.ENOSYS }},
		{"user mode only", "userfaultfd", verdictOK, "", func(f *facts) { f.UffdFull = false }},
		{"no write-protect faults", "userfaultfd", verdictOK, "", func(f *facts) { f.UffdProtects = false }},
		{"user mode only, no write-protect faults", "userfaultfd", verdictWarning, "vm.unprivileged_userfaultfd=1", func(f *facts) { f.UffdFull, f.UffdProtects = false, false }},
		{"no BTF", "bpf", verdictLater, "BTF", func(f *facts) { f.BTF = false }},
		{"no right to BPF", "bpf", verdictLater, "CAP_BPF", func(f *facts) { f.Caps = 0 }},
		{"CAP_BPF and CAP_PERFMON", "bpf", verdictOK, "", func(f *facts) { f.Caps = 1<<capBPF | 1<<capPerfmon }},
		{"no bpffs", "bpf", verdictLater, "mount -t bpf", func(f *facts) { f.BPFFS = false }},
		{"lockdown", "bpf", verdictLater, "boot", func(f *facts) { f.Lockdown = "confidentiality" }},
		{"no lockdown", "bpf", verdictOK, "", func(f *facts) { f.Lockdown = "none" }},
		{"no VFIO", "vfio", verdictLater, "modprobe", func(f *facts) { f.VFIO, f.IOMMUFD = false, false }},
		{"no IOMMU", "vfio", verdictLater, "intel_iommu=on", func(f *facts) { f.IOMMUFD, f.IOMMUGroups = false, 0 }},
		{"VFIO groups", "vfio", verdictOK, "", func(f *facts) { f.IOMMUFD = false }},
		{"nodes", "vfio", verdictOK, "", func(f *facts) { f.VFIO, f.IOMMUFD, f.Nodes = false, false, 2 }},
		{"a node that pfd cannot have", "vfio", verdictWarning, "exanetctl bind x", func(f *facts) { f.Nodes, f.Node, f.NodeRemedy = 2, errors.New("x"), "exanetctl bind x" }},
		{"nodes and little memory to lock", "memlock", verdictWarning, "LimitMEMLOCK", func(f *facts) { f.Nodes, f.Memlock = 1, 8<<20 }},
		{"no board", "uio", verdictLater, "board", func(f *facts) { f.UIO = 0 }},
		{"little memory to lock", "memlock", verdictLater, "LimitMEMLOCK", func(f *facts) { f.Memlock = 8 << 20 }},
		{"much memory to lock", "memlock", verdictOK, "", func(f *facts) { f.Memlock = 1 << 30 }},
		{"no folios", "folios", verdictChoice, folios.SharedLine, func(f *facts) { f.FoliosShared.Sizes = "" }},
		{"no folios of private memory", "folios-any", verdictChoice, folios.PrivateLine, func(f *facts) { f.FoliosPrivate.Sizes = "" }},
		{"folios of 2 MiB only", "folios-any", verdictChoice, "12.7x", func(f *facts) { f.FoliosPrivate = folios.Setting{Known: true, Huge: true} }},
		{"folios of 2 MiB, too", "folios", verdictOK, "", func(f *facts) { f.FoliosShared.Huge = true }},
		{"an old kernel has no folios", "folios", verdictLater, "6.11", func(f *facts) { f.FoliosShared = folios.Setting{} }},
		{"no provider", "libfabric", verdictLater, "libexanet-fi", func(f *facts) { f.Provider = "" }},
		{"hosts", "hosts", verdictOK, "", func(f *facts) { f.Hosts = linked(control.HostUp) }},
		{"an idle link", "hosts", verdictOK, "", func(f *facts) { f.Hosts = linked(control.HostIdle) }},
		{"a certificate that ends", "hosts", verdictWarning, "docs/hosts.md", func(f *facts) {
			f.Hosts = linked(control.HostUp)
			f.Hosts.Certificate, f.Hosts.CertificateLeftNS = "of host a", int64(29*24*time.Hour)
		}},
		{"a certificate that lasts", "hosts", verdictOK, "", func(f *facts) {
			f.Hosts = linked(control.HostUp)
			f.Hosts.Certificate, f.Hosts.CertificateLeftNS = "of host a", int64(31*24*time.Hour)
		}},
		{"a host that is away", "hosts", verdictWarning, "exanetctl host", func(f *facts) { f.Hosts = linked(control.HostUnreachable) }},
		{"no exanet-hostd", "hosts", verdictWarning, "systemctl start exanet-hostd", func(f *facts) { f.Hosts = linked(control.HostUp); f.Hosts.Hostd = false }},
		{"a table that is refused", "hosts", verdictWarning, "nodes 0-1", func(f *facts) { f.Hosts = linked(control.HostUp); f.Hosts.Refused = "nodes 0-1" }},
		{"no daemon", "daemon", verdictWarning, "pfd --nodes 2 --socket PATH", func(f *facts) { f.Daemon, f.Socket = errors.New("not there"), "" }},
		{"no daemon on a socket", "daemon", verdictWarning, "pfd --nodes 2 --socket /run/x", func(f *facts) { f.Daemon, f.Socket = errors.New("not there"), "/run/x" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := well()
			c.edit(&f)
			for _, k := range f.judge() {
				if len("VERDICT  procmap-query  "+k.Found) > 80 {
					t.Errorf("wider than a terminal: %q", k.Found)
				}
				switch {
				case k.Name != c.check:
					if k.Verdict != verdictOK && c.check != "ptrace" && c.check != "bpf" {
						t.Errorf("%s is %s, too", k.Name, k.Verdict)
					}
				case k.Verdict != c.verdict || !strings.Contains(k.Remedy, c.remedy) || (k.Remedy == "") != (k.Verdict == verdictOK):
					t.Errorf("got %+v", k)
				}
			}
		})
	}
}

// Files of a machine, and the facts that gather reads from them.
func TestReadFiles(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"proc/sys/kernel/osrelease":                           "6.1.0-18-amd64\n",
		"proc/sys/kernel/yama/ptrace_scope":                   "2\n",
		"proc/sys/kernel/unprivileged_bpf_disabled":           "2\n",
		"proc/self/status":                                    "Name:\tx\nCapPrm:\tffffffffffffffff\nCapEff:\t0000000000080000\n",
		"proc/self/mounts":                                    "proc /proc proc rw 0 0\nbpf /sys/fs/bpf bpf rw 0 0\n",
		"sys/kernel/security/lockdown":                        "none [integrity] confidentiality\n",
		"sys/kernel/btf/vmlinux":                              "",
		"sys/kernel/iommu_groups/0/x":                         "",
		"sys/kernel/iommu_groups/1/x":                         "",
		"sys/class/uio/uio0":                                  "",
		"dev/vfio/vfio":                                       "",
		"usr/lib/riscv64-linux-gnu/libfabric/libexanet-fi.so": "",
		"dev/iommu":                                           "",
		"sys/kernel/mm/transparent_hugepage/hugepages-64kB/shmem_enabled": "always inherit within_size [advise] never\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var f facts
	f.readFiles(root)
	want := facts{
		Kernel: [2]int{6, 1}, Release: "6.1.0-18-amd64", Caps: 1 << capSysPtrace, Yama: 2, BTF: true, BPFDisabled: "2", BPFFS: true,
		Lockdown: "integrity", VFIO: true, IOMMUFD: true, IOMMUGroups: 2, UIO: 1,
		FoliosShared: folios.Setting{Known: true, Sizes: "64 KiB"},
		Provider:     "/usr/lib/riscv64-linux-gnu/libfabric/libexanet-fi.so",
	}
	if f != want {
		t.Errorf("got  %+v\nwant %+v", f, want)
	}
	f = facts{}
	f.readFiles(t.TempDir())
	if want := (facts{Yama: -1}); f != want {
		t.Errorf("nothing there: got %+v", f)
	}
}

func TestKernelVersion(t *testing.T) {
	for release, want := range map[string][2]int{
		"6.18.44-fc-v595": {6, 18}, "5.14.0": {5, 14}, "6.1-rc3": {6, 1}, "7.0": {7, 0}, "": {}, "nonsense": {},
	} {
		if got := kernelVersion(release); got != want {
			t.Errorf("%q: %v, want %v", release, got, want)
		}
	}
}

// On this machine everything works that the tests of this repository need.
func TestDoctorHere(t *testing.T) {
	code, out, errs := ctl("doctor", "-j", "--socket", filepath.Join(t.TempDir(), "none"))
	var r report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if _, out, errs := ctl("doctor", "-o", "csv", "--socket", filepath.Join(t.TempDir(), "none")); strings.Contains(out, "remedy ") || !strings.Contains(errs, "remedy daemon: ") {
		t.Errorf("CSV: remedies are no rows: %q, %q", out, errs)
	}
	if r.Version != 1 || len(r.Checks) != 20 {
		t.Errorf("version %d, %d checks", r.Version, len(r.Checks))
	}
	failed := false
	for _, c := range r.Checks {
		if c.Verdict != verdictOK && c.Remedy == "" {
			t.Errorf("no remedy: %+v", c)
		}
		failed = failed || c.Verdict == verdictError
	}
	if (code == exitFailed) != failed || errs != "" {
		t.Errorf("exit code %d with %s%s", code, out, errs)
	}
	_, table, _ := ctl("doctor", "--socket", filepath.Join(t.TempDir(), "none"))
	if !strings.Contains(table, "remedy daemon: start one: pfd --nodes 2") || strings.Contains(table, "remedy uio") || strings.Contains(table, "\x1b") {
		t.Errorf("table:\n%s", table)
	}
}
