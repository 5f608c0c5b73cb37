package packaging

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// containedEnv makes the test's program run the command of its arguments under Docker's default
// seccomp profile, like a container runtime.
const containedEnv = "EXANET_TEST_CONTAINED"

// refused are the system calls that Docker's default profile forbids to a container without
// added capabilities (moby/moby, profiles/seccomp/default.json; containerd's is the same), and
// those newer than the profile. The profile returns EPERM.
var refused = strings.Fields(`
	kcmp pidfd_getfd process_madvise userfaultfd
	bpf fanotify_init perf_event_open lookup_dcookie syslog
	io_uring_enter io_uring_register io_uring_setup
	get_mempolicy mbind migrate_pages move_pages set_mempolicy set_mempolicy_home_node
	fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree pivot_root umount2
	open_by_handle_at chroot setns unshare quotactl quotactl_fd acct swapon swapoff
	add_key keyctl request_key
	create_module delete_module finit_module get_kernel_syms init_module query_module kexec_file_load kexec_load reboot
	clock_settime settimeofday setdomainname sethostname ioperm iopl vhangup
	_sysctl afs_syscall getpmsg nfsservctl putpmsg security sysfs tuxcall uselib ustat vserver
	cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount
	lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat removexattrat open_tree_attr`)

// namespaces are the flags of clone(2) that the profile forbids; AF_VSOCK is the forbidden
// socket family.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// contain applies the profile to this thread and executes the command.
func contain(args []string) error {
	runtime.LockOSThread()
	info, err := arch.GetInfo("")
	if err != nil {
		return err
	}
	byArgument := []string{"clone", "clone3", "socket"}
	allowed := slices.DeleteFunc(slices.Sorted(maps.Keys(info.SyscallNames)), func(name string) bool {
		return slices.Contains(refused, name) || slices.Contains(byArgument, name)
	})
	err = seccomp.LoadFilter(seccomp.Filter{Policy: seccomp.Policy{
		DefaultAction: seccomp.ActionErrno, // EPERM
		Syscalls: []seccomp.SyscallGroup{
			{Names: []string{"clone3"}, Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS)}, // so that the C library falls back to clone
			{Names: allowed, Action: seccomp.ActionAllow, NamesWithCondtions: []seccomp.NameWithConditions{
				{Name: "clone", Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.BitsNotSet, Value: namespaces}}},
				{Name: "socket", Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.NotEqual, Value: unix.AF_VSOCK}}},
			}},
		},
	}})
	if err != nil {
		return fmt.Errorf("the profile: %w", err)
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	return unix.Exec(path, args, os.Environ())
}

// place is a directory of the test that containers mount as /run/exanet, with the programs.
type place struct {
	t    *testing.T
	bin  string
	dirs string // mounted as /run/exanet
}

// in returns a command that has the directory as /run/exanet, in its own mount namespace:
// contained or not, as root with the capabilities of a container, or as a user without any.
func (p *place) in(contained bool, uid int, args ...string) *exec.Cmd {
	const caps = "-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,+setfcap,+setpcap,+net_bind_service,+sys_chroot,+kill,+audit_write"
	as := []string{"setpriv", fmt.Sprint("--reuid=", uid), fmt.Sprint("--regid=", uid), "--clear-groups", "--inh-caps=-all"}
	switch {
	case contained && uid == 0:
		as = append(as, "--bounding-set="+caps)
	case contained:
		as = append(as, "--bounding-set=-all", "--no-new-privs")
	}
	args = append(as, args...)
	const mounts = `mount -t tmpfs run /run && mkdir /run/exanet && mount --bind "$0" /run/exanet &&
		{ [ ! -e /dev/userfaultfd ] || mount --bind /dev/null /dev/userfaultfd; } && exec "$@"`
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", mounts, p.dirs}, append([]string{os.Args[0]}, args...)...)...)
	if !contained {
		cmd.Args = slices.Delete(cmd.Args, len(cmd.Args)-len(args)-1, len(cmd.Args)-len(args))
	}
	cmd.Env = append(os.Environ(), containedEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// said runs a command to its end and returns its output.
func said(cmd *exec.Cmd) string {
	out, err := cmd.CombinedOutput()
	if err != nil {
		out = fmt.Appendf(out, "\n%v", err)
	}
	return string(out)
}

// transfers writes to a target in C and one in Go, by each method. The profile forbids
// userfaultfd; the client reports that and the remedy.
func (p *place) transfers(contained bool, uid int) {
	for _, method := range []string{"gup", "touch", "populate", "uffd"} {
		forbidden := method == "uffd" && contained
		check := func(who, out string, done bool) {
			p.t.Helper()
			remedy := strings.Contains(out, "seccomp filter") && strings.Contains(out, "another method")
			if done == forbidden || forbidden && !remedy {
				p.t.Errorf("%s of uid %d (contained %v) by %s:\n%s", who, uid, contained, method, out)
			}
		}
		out := said(p.in(contained, uid, p.bin+"/exanetctl", "write", "--method", method, "--size", "64KiB", "--count", "3", "--dst", "absent"))
		check("Go", out, strings.Contains(out, "every byte is right"))

		target := p.in(contained, uid, p.bin+"/client", "target", "/run/exanet/pfd.sock", "0", method, "65536")
		var text strings.Builder
		var stderr bytes.Buffer
		target.Stderr = &stderr
		stdout, err := target.StdoutPipe()
		if err == nil {
			err = target.Start()
		}
		if err != nil {
			p.t.Fatal(err)
		}
		lines := bufio.NewScanner(stdout)
		if lines.Scan() {
			to := strings.Fields(lines.Text())
			text.WriteString(said(p.in(contained, uid, append([]string{p.bin + "/client", "write", "/run/exanet/pfd.sock", "1", method, "65536"}, to...)...)))
		}
		for lines.Scan() {
			text.WriteString(lines.Text())
		}
		err = target.Wait()
		text.Write(stderr.Bytes())
		check("C", text.String(), err == nil && strings.Contains(text.String(), "65536 bytes came, 0 wrong"))
	}
}

// TestContainers runs pfd and its clients under Docker's default profile, each in its own
// container with /run/exanet: pfd as the service outside, as in the image and the DaemonSet,
// beside its clients as one user, and as root of a container.
func TestContainers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: a mount namespace for each container")
	}
	need(t, "unshare", "setpriv", "gcc", "mount")
	if out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "true").CombinedOutput(); err != nil {
		t.Skipf("this machine gives no mount namespace: %v: %s", err, out)
	}
	bin := t.TempDir()
	run(t, "go", "build", "-buildvcs=false", "-o", bin+"/", "./cmd/pfd", "./cmd/exanetctl")
	run(t, "sh", "contrib/scripts/libexanet.sh", bin)
	run(t, "gcc", "-std=c11", "-I", bin, "-o", bin+"/client", "examples/c/exanet.c", bin+"/libexanet.a", "-pthread")
	const image, other = 65532, user
	for _, row := range []struct {
		name      string
		uid       int // of pfd
		contained bool
		args      []string
		clients   []int
		outside   bool // also clients without a profile
	}{
		{"the service", image, false, []string{"--sandbox=strict"}, []int{0, other}, false},
		{"the image", image, true, []string{"--sandbox=strict"}, []int{0, other, image}, true},
		{"one user", other, true, nil, []int{other}, false},
		{"root", 0, true, nil, []int{0, other}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := &place{t, bin, t.TempDir()}
			if err := os.Chown(p.dirs, row.uid, row.uid); err != nil {
				t.Fatal(err)
			}
			pfd := p.in(row.contained, row.uid, append([]string{bin + "/pfd", "--socket", "/run/exanet/pfd.sock", "--quota", "4"}, row.args...)...)
			var log bytes.Buffer
			ready, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer ready.Close()
			pfd.Stderr = w
			if err := pfd.Start(); err != nil {
				t.Fatal(err)
			}
			w.Close()
			lines := bufio.NewScanner(ready)
			for lines.Scan() && !strings.Contains(lines.Text(), "msg=ready") {
				log.WriteString(lines.Text() + "\n")
			}
			drained := make(chan struct{})
			go func() {
				defer close(drained)
				for lines.Scan() {
					log.WriteString(lines.Text() + "\n")
				}
			}()
			t.Cleanup(func() {
				_ = pfd.Process.Signal(syscall.SIGTERM)
				err := pfd.Wait()
				<-drained
				if err != nil || t.Failed() {
					t.Errorf("pfd: %v\n%s", err, log.String())
				}
			})
			for _, uid := range row.clients {
				p.transfers(true, uid)
			}
			if row.outside {
				p.transfers(false, other)
			}
			if out := said(p.in(true, other, bin+"/exanetctl", "status", "-j")); !strings.Contains(out, `"state":"ready"`) {
				t.Errorf("status of a contained user: %s", out)
			}
		})
	}
}
