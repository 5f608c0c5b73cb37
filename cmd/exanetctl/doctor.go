package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/folios"
)

// Verdicts of a check. Values are defined by this project.
const (
	verdictOK      = "ok"
	verdictLater   = "later"   // missing, but nothing on this machine needs it
	verdictChoice  = "choice"  // off, and works without: it has a price
	verdictWarning = "warning" // the main function works; something is slower or switched off
	verdictError   = "error"   // the main function does not work
)

// check is one line of the doctor's report.
type check struct {
	Name    string `json:"name"`
	Verdict string `json:"verdict"`
	Found   string `json:"found"`
	Need    string `json:"needed_for"`
	Remedy  string `json:"remedy,omitempty"`
}

// report is the doctor's JSON.
type report struct {
	Version int     `json:"version"`
	Checks  []check `json:"checks"`
}

// Capabilities that doctor checks (linux/capability.h).
const (
	capSysPtrace = 19
	capSysAdmin  = 21
	capPerfmon   = 38
	capBPF       = 39
)

// facts are the observations of the doctor. The checks use nothing else.
type facts struct {
	Kernel       [2]int // major, minor
	Release      string
	Caps         uint64 // effective capabilities
	Yama         int    // kernel.yama.ptrace_scope, -1 without Yama
	Pagemap      error  // reading the residency of a page of this process
	PagemapScan  error  // PAGEMAP_SCAN
	ProcmapQuery error  // PROCMAP_QUERY
	ProcessVM    error  // process_vm_readv and writev
	Kcmp         error  // kcmp(2) of this process's address space
	Memfd        error  // a sealed memfd
	PeerPidfd    error  // SO_PEERPIDFD
	Netlink      error  // a NETLINK_USERSOCK socket
	Populate     error  // MADV_POPULATE_WRITE
	Uffd         error  // userfaultfd, user mode only
	UffdFull     bool   // full mode: sysctl, capability or /dev/userfaultfd
	UffdProtects bool   // write-protect faults; with them user mode is enough
	BTF          bool   // /sys/kernel/btf/vmlinux
	BPFDisabled  string // kernel.unprivileged_bpf_disabled; "" if unknown
	BPFFS        bool   // a BPF file system is mounted
	Lockdown     string // kernel lockdown; "" if there is none
	VFIO         bool   // /dev/vfio/vfio
	IOMMUFD      bool   // /dev/iommu
	IOMMUGroups  int
	Nodes        int    // number of PCI functions that are nodes
	Node         error  // why pfd cannot drive one of them
	NodeRemedy   string // the remedy for Node
	UIO          int    // number of UIO devices
	Memlock      uint64 // RLIMIT_MEMLOCK in bytes; all ones means unlimited

	FoliosShared, FoliosPrivate folios.Setting

	Provider string // file of the libfabric provider; "" if there is none

	Socket     string         // control socket
	Daemon     error          // why pfd does not answer
	DaemonText string         // description of pfd if it answers
	Hosts      *control.Hosts // links to other hosts; nil: pfd does not answer
}

func (f facts) cap(n uint) bool { return f.Caps&(1<<n) != 0 }

func (f facts) atLeast(major, minor int) bool {
	return f.Kernel[0] > major || f.Kernel[0] == major && f.Kernel[1] >= minor
}

// judge returns the checks of the report.
func (f facts) judge() []check {
	checks := []check{f.kernel(), f.ptrace()}
	for _, c := range []struct {
		name, found, need, remedy string
		err                       error
		verdict                   string // if err is not nil
	}{
		{"pagemap", "readable", "the emulated SMMU's walk", "mount /proc (a container may hide it)", f.Pagemap, verdictError},
		{"process_vm", "works", "copying data without pinning", "allow process_vm_readv and process_vm_writev in the seccomp policy", f.ProcessVM, verdictError},
		{"kcmp", "works", "naming a process's memory by its keeper", "without it each process has a memory helper, which makes transfers slower: allow kcmp in the seccomp policy, or use a kernel with CONFIG_KCMP", f.Kcmp, verdictWarning},
		{"memfd", "works, with seals", "attachments", "allow memfd_create in the seccomp policy", f.Memfd, verdictError},
		{"netlink", "works", "the touch method", "allow sockets of family AF_NETLINK, protocol NETLINK_USERSOCK, or use --method gup", f.Netlink, verdictError},
		{"populate", "works", "the touch method", "use Linux 5.14 or newer", f.Populate, verdictError},
		{"peer-pidfd", "works", "attachments: referring to processes by descriptors", "use Linux 6.5 or newer", f.PeerPidfd, verdictError},
		{"procmap-query", "works", "fast look-ups of mappings", "use Linux 6.11 or newer; until then /proc/PID/maps is read", f.ProcmapQuery, verdictWarning},
		{"pagemap-scan", "works", "distinguishing the zero page from other pages", "use Linux 6.7 or newer; until then writes to such pages fault once more", f.PagemapScan, verdictWarning},
	} {
		k := check{Name: c.name, Verdict: verdictOK, Found: c.found, Need: c.need}
		if c.err != nil {
			k.Verdict, k.Found, k.Remedy = c.verdict, c.err.Error(), c.remedy
		}
		checks = append(checks, k)
	}
	checks = append(checks, f.userfaultfd(), f.bpf(), f.vfio(), f.uio(), f.memlock())
	checks = append(checks, f.folios()...)
	checks = append(checks, f.libfabric(), f.daemon())
	if h := f.Hosts; h != nil && (h.Hostd || h.Cluster != "" || h.Refused != "") {
		checks = append(checks, hostsCheck(h))
	}
	return checks
}

// hostsCheck checks the links to other hosts.
func hostsCheck(h *control.Hosts) check {
	c := check{Name: "hosts", Verdict: verdictOK, Need: "transfers to other hosts"}
	var away []string
	for i := range h.Hosts {
		if s := h.Hosts[i].State; s != control.HostUp && s != control.HostIdle {
			away = append(away, h.Hosts[i].Name+" "+s)
		}
	}
	switch {
	case h.Refused != "":
		c.Verdict, c.Found, c.Remedy = verdictWarning, "a table of hosts that pfd refuses", h.Refused
	case !h.Hostd:
		c.Verdict, c.Found, c.Remedy = verdictWarning, "no exanet-hostd", "start it: systemctl start exanet-hostd; until then no link is made anew"
	case certificateTrouble(h) != "":
		c.Verdict, c.Found, c.Remedy = verdictWarning, "a certificate that ends soon", certificateTrouble(h)
	case len(away) > 0:
		c.Verdict, c.Found = verdictWarning, strings.Join(away, ", ")
		c.Remedy = "exanetctl host -o wide shows the last error of each link"
	default:
		c.Found = plural(len(h.Hosts), "other host") + ", all links up or idle"
	}
	return c
}

func (f facts) libfabric() check {
	c := check{Name: "libfabric", Verdict: verdictOK, Found: f.Provider, Need: "MPI programs over pfd (docs/mpi.md)"}
	if f.Provider == "" {
		c.Verdict, c.Found = verdictLater, "no "+providerFile
		c.Remedy = "install the package libexanet-fi (make deb), or name the directory of " + providerFile + " (make c) in FI_PROVIDER_PATH; then fi_info -p exanet lists the provider"
	}
	return c
}

func (f facts) kernel() check {
	c := check{Name: "kernel", Verdict: verdictOK, Found: f.Release, Need: "everything"}
	// Attaching needs SO_PEERPIDFD: a process number may be reused, a pidfd is not.
	if !f.atLeast(6, 5) {
		c.Verdict = verdictError
		c.Remedy = "use Linux 6.5 or newer; 6.11 or newer is best"
	}
	return c
}

// ptrace checks the right to access other processes' memory, PTRACE_MODE_ATTACH
// (ptrace(2), "Ptrace access mode checking"; Yama: admin-guide/LSM/Yama.rst). pfd
// uses its own right for processes of its user. Processes of other users start a helper,
// to which the same rules apply.
func (f facts) ptrace() check {
	c := check{Name: "ptrace", Verdict: verdictOK, Need: "accessing the memory of attached processes"}
	switch {
	case f.Yama >= 3:
		c.Verdict = verdictError
		c.Found = fmt.Sprintf("Yama ptrace_scope %d: no process may", f.Yama)
		c.Remedy = "set kernel.yama.ptrace_scope to 1 in /etc/sysctl.d and restart the machine (3 cannot be lowered while it runs)"
	case f.Yama == 2 && !f.cap(capSysPtrace):
		c.Verdict = verdictError
		c.Found = "Yama ptrace_scope 2: only processes with CAP_SYS_PTRACE"
		c.Remedy = "sysctl kernel.yama.ptrace_scope=1"
	case f.Yama == 1:
		c.Found = "Yama ptrace_scope 1: processes that use the library"
	default:
		c.Found = "dumpable processes of the same user; others by helpers"
	}
	return c
}

func (f facts) userfaultfd() check {
	c := check{Name: "userfaultfd", Verdict: verdictOK, Found: "write-protect faults", Need: "the uffd method (not needed for gup and touch)"}
	switch {
	case f.Uffd != nil:
		c.Verdict, c.Found = verdictWarning, f.Uffd.Error()
		c.Remedy = "use a kernel with CONFIG_USERFAULTFD, and allow userfaultfd in the seccomp policy"
	case f.UffdProtects:
	case f.UffdFull:
		c.Found = "full mode: a process's own touches wait for pfd"
	default:
		c.Verdict, c.Found = verdictWarning, "user mode only: system calls fail on absent pages"
		c.Remedy = "use Linux 6.10 or newer on arm64; or set sysctl vm.unprivileged_userfaultfd=1; or allow access to /dev/userfaultfd for the processes that attach with method uffd, whose library makes the userfaultfd"
	}
	return c
}

func (f facts) bpf() check {
	c := check{Name: "bpf", Verdict: verdictOK, Need: "exanetctl trace"}
	var found, remedy []string
	if !f.BTF {
		found = append(found, "no BTF")
		remedy = append(remedy, "use a kernel with CONFIG_DEBUG_INFO_BTF")
	}
	if !f.cap(capSysAdmin) && !(f.cap(capBPF) && f.cap(capPerfmon)) {
		text := "no CAP_BPF and CAP_PERFMON"
		if f.BPFDisabled != "" {
			text += " (kernel.unprivileged_bpf_disabled " + f.BPFDisabled + ")"
		}
		found = append(found, text)
		remedy = append(remedy, "run as root, or with CAP_BPF and CAP_PERFMON")
	}
	if !f.BPFFS {
		found = append(found, "bpffs not mounted")
		remedy = append(remedy, "mount -t bpf bpf /sys/fs/bpf (`trace on` as root does it)")
	}
	if !f.atLeast(6, 6) && !f.cap(capSysAdmin) {
		found = append(found, "Linux older than 6.6")
		remedy = append(remedy, "without uprobe_multi trace needs CAP_SYS_ADMIN: use Linux 6.6 or newer")
	}
	if f.Lockdown == "confidentiality" {
		found = append(found, "lockdown "+f.Lockdown)
		remedy = append(remedy, "this lockdown keeps BPF programs from reading kernel memory: the stages are measured, but not the figures that need such reads (see `trace status`); it can only be lifted at boot")
	}
	if len(found) > 0 {
		c.Verdict = verdictLater
		c.Found, c.Remedy = strings.Join(found, "; "), strings.Join(remedy, "; ")
	} else {
		c.Found = "BTF, capabilities and bpffs"
	}
	return c
}

func (f facts) vfio() check {
	c := check{Name: "vfio", Verdict: verdictOK, Need: "nodes that are PCI functions (pfd --device vfio:ADDRESS)"}
	switch {
	case f.Node != nil:
		c.Verdict, c.Found, c.Remedy = verdictWarning, f.Node.Error(), f.NodeRemedy
	case f.Nodes > 0:
		c.Found = fmt.Sprintf("%d nodes, ready for pfd", f.Nodes)
	case f.IOMMUFD && f.VFIO, f.IOMMUFD && f.IOMMUGroups > 0:
		c.Found = fmt.Sprintf("iommufd, %d IOMMU groups", f.IOMMUGroups)
	case f.VFIO && f.IOMMUGroups > 0:
		c.Found = fmt.Sprintf("VFIO groups, %d IOMMU groups", f.IOMMUGroups)
	case f.VFIO:
		c.Verdict, c.Found = verdictLater, "VFIO without an IOMMU"
		c.Remedy = "turn on the IOMMU in the firmware and with intel_iommu=on, or use no-IOMMU mode as root"
	default:
		c.Verdict, c.Found = verdictLater, "no /dev/vfio"
		c.Remedy = "modprobe vfio-pci, or use a kernel with CONFIG_VFIO_PCI"
	}
	return c
}

func (f facts) uio() check {
	c := check{Name: "uio", Verdict: verdictOK, Found: fmt.Sprintf("%d devices", f.UIO), Need: "nodes of a board (pfd --device uio:NAME)"}
	if f.UIO == 0 {
		c.Verdict = verdictLater
		c.Remedy = "only on a board: load the ExaNet UIO devices"
	}
	return c
}

func (f facts) memlock() check {
	c := check{Name: "memlock", Verdict: verdictOK, Need: "nodes that are PCI functions: VFIO pins the memory mapped for them"}
	if f.Memlock == ^uint64(0) {
		c.Found = "unlimited"
		return c
	}
	c.Found = bytesText(f.Memlock)
	if f.Memlock < 64<<20 {
		c.Verdict = verdictLater
		if f.Nodes > 0 {
			c.Verdict = verdictWarning
		}
		c.Remedy = "for VFIO only: set LimitMEMLOCK in the service to the size of the windows and their tables (528M for two nodes), or use ulimit -l"
	}
	return c
}

// folioCheck checks a setting for folios. That it is off is no fault: single pages waste no memory.
func folioCheck(c check, s folios.Setting, kernel, remedy string) check {
	c.Verdict, c.Found = verdictOK, s.Sizes
	switch {
	case !s.Known:
		c.Verdict, c.Found = verdictLater, "no setting in this kernel"
		c.Remedy = "use Linux " + kernel + " or newer with CONFIG_TRANSPARENT_HUGEPAGE"
	case s.Sizes == "":
		c.Verdict, c.Found, c.Remedy = verdictChoice, "single pages", remedy
		if s.Huge {
			c.Found = "2 MiB only, in memory advised with MADV_HUGEPAGE"
		}
	case s.Huge:
		c.Found += "; 2 MiB, too: its first byte takes 90 us or more"
	}
	return c
}

// foliosCost is the price of folios, of shared and of private memory.
const foliosCost = "memory that is touched sparsely takes more: 512 random pages of 64 MiB 12.7x (with folios of 16 KiB 3.8x, of 256 KiB 26x). " +
	"docs/service.md says how to make the setting at each boot. Until the next boot, as root: "

func (f facts) folios() []check {
	return []check{
		folioCheck(check{Name: "folios", Need: "faster faults in shared memory (--folios)"}, f.FoliosShared, "6.11",
			"folios of 64 KiB make a write of 1 MiB to absent pages take 0.65x the time; "+foliosCost+folios.SharedLine),
		folioCheck(check{Name: "folios-any", Need: "faster faults in private memory (MADV_HUGEPAGE)"}, f.FoliosPrivate, "6.8",
			"folios of 64 KiB make a write of 1 MiB to absent pages take 0.75x the time; "+foliosCost+folios.PrivateLine),
	}
}

func (f facts) daemon() check {
	c := check{Name: "daemon", Verdict: verdictOK, Found: f.DaemonText, Need: "all commands that use pfd"}
	if f.Daemon != nil {
		c.Verdict, c.Found = verdictWarning, f.Daemon.Error()
		if errors.Is(f.Daemon, control.ErrNoDaemon) && f.Socket != "" {
			c.Found = "none on " + f.Socket
		}
		if f.Socket != "" {
			c.Remedy = "start one: pfd --nodes 2 --socket " + f.Socket
		} else {
			// There is no default socket (control.FindSocket).
			c.Remedy = "start one: pfd --nodes 2 --socket PATH, and use the same --socket with exanetctl"
		}
	}
	return c
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check what this machine supports, and name a remedy for each problem",
		Long: `doctor checks what this machine supports and names a remedy for each problem.
It needs no daemon. With an "error" RDMA into absent memory of emulated nodes does
not work; with a "warning" something is slower, or something else does not work;
"later" is missing but not used on this machine (-j prints its remedy). A "choice" is
off and has a price. The exit code is 1 if there is an error.`,
		Args: maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := gather("/", a.socket)
			a.askDaemon(cmd, &f)
			r := report{Version: control.Version, Checks: f.judge()}
			if err := a.printReport(r); err != nil {
				return err
			}
			for _, c := range r.Checks {
				if c.Verdict == verdictError {
					return fmt.Errorf("%w: RDMA does not work on this machine: %s: %s", errReported, c.Name, c.Remedy)
				}
			}
			return nil
		},
	}
}

func (a *app) askDaemon(cmd *cobra.Command, f *facts) {
	c, err := a.client()
	if err != nil {
		f.Daemon = err
		return
	}
	f.Socket = c.Socket()
	s, err := c.Status(cmd.Context())
	if err != nil {
		f.Daemon = err
		return
	}
	f.DaemonText = fmt.Sprintf("pfd %s on %s, %s", s.DaemonVersion, f.Socket, s.State)
	if h, err := c.Hosts(cmd.Context()); err == nil {
		f.Hosts = &h
	}
}

func (a *app) printReport(r report) error {
	if a.wantJSON() {
		return a.printJSON(r)
	}
	colour := colours(a.out, a.getenv)
	t := a.table("VERDICT", "CHECK", "NEEDED FOR", "FOUND")
	t.wraps = append(t.wraps, "NEEDED FOR")
	for _, c := range r.Checks {
		t.add(c.Verdict, c.Name, c.Need, c.Found)
	}
	// Colours would disturb the layout of the columns: they are added to the finished lines.
	if err := t.flushWith(func(line string) string {
		if !colour {
			return line
		}
		for word, paint := range map[string]string{verdictOK: green, verdictWarning: yellow, verdictError: red} {
			if rest, ok := strings.CutPrefix(line, word+" "); ok {
				return paint + word + plain + " " + rest
			}
		}
		return line
	}); err != nil {
		return err
	}
	for _, c := range r.Checks {
		word := "remedy"
		switch c.Verdict {
		case verdictOK, verdictLater:
			continue
		case verdictChoice:
			word = "choice"
		}
		if err := a.remark("%s %s: %s", word, c.Name, c.Remedy); err != nil {
			return err
		}
	}
	return nil
}
