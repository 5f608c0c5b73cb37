package sandbox

import (
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"

	"github.com/exanet/pfd/internal/procstatus"
)

// Apply takes what r does not keep from all threads of the process, and gives the
// steps that could not be taken.
func Apply(r Rules) []Missing {
	time.Sleep(settle)
	var missing []Missing
	for _, s := range []struct {
		step Step
		take func(Rules) error
	}{
		{StepFiles, restrictFiles},
		{StepCapabilities, dropCapabilities},
		{StepCalls, filterCalls}, // last: the others' calls are not kept
	} {
		err := s.take(r)
		if err == nil {
			continue
		}
		missing = append(missing, Missing{s.step, err})
		if s.step == StepCalls { // the filter brings no_new_privs to all threads
			if err := noNewPrivileges(); err != nil {
				missing = append(missing, Missing{StepPrivileges, err})
			}
		}
	}
	return missing
}

// settle is how long a thread is in a system call until the Go runtime's monitor has
// certainly taken its processor (its P): at 10 ms, and its next look is 10 ms later.
// The runtime stops all threads for a call that each of them makes. With Go 1.26
// (stopTheWorldWithSema) a stop misses a thread whose system call the monitor looks at
// in that moment, and waits until that call returns, or for a minute: seen once in
// 20,000 stops beside threads that had just begun to wait. One that has lost its
// processor is not missed.
const settle = 25 * time.Millisecond

func restrictFiles(r Rules) error {
	if r.Files == nil {
		return nil
	}
	if err := signals(); err != nil {
		return err
	}
	// The rights of Landlock's fifth version (Linux 6.10), of which an older kernel
	// takes those that it knows. No TCP socket is bound or connected any more.
	c := landlock.V5
	if err := c.Restrict(rulesFor(r.Files)...); err == nil {
		return nil
	}
	if err := c.BestEffort().Restrict(rulesFor(r.Files)...); err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	return fmt.Errorf("landlock: %w in full: this kernel takes some of its rules at most", ErrUnsupported)
}

// signals returns an error unless the kernel can queue a signal for each thread. The runtime sends
// one to each of them for a call that all make (syscall.AllThreadsSyscall), and waits without end
// for a thread that gets none (setrlimit(2), RLIMIT_SIGPENDING: of all processes of this user).
func signals() error {
	status, _ := os.ReadFile("/proc/self/status") // without it nothing says that it cannot
	var queued, most, threads uint64
	queue, _ := procstatus.Field(status, "SigQ")
	count, _ := procstatus.Field(status, "Threads")
	if n, _ := fmt.Sscanf(queue+" "+count, "%d/%d %d", &queued, &most, &threads); n == 3 && queued+2*threads > most {
		return fmt.Errorf("%w: %d threads take a signal each, and of the %d signals that this user's processes may have queued there are %d (ulimit -i, LimitSIGPENDING= of a unit)",
			unix.EAGAIN, threads, most, queued)
	}
	return nil
}

func rulesFor(f *Files) (list []landlock.Rule) {
	for _, path := range f.Read {
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			list = append(list, landlock.ROFiles(path))
			continue
		}
		list = append(list, landlock.RODirs(path).IgnoreIfMissing())
	}
	for _, path := range f.Write {
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			list = append(list, landlock.RWFiles(path))
			continue
		}
		list = append(list, landlock.RWDirs(path).IgnoreIfMissing())
	}
	return list
}

// dropCapabilities keeps those of r in the permitted and effective sets, where they
// are, and none in the inheritable and ambient ones. The bounding set stays as it is:
// under no_new_privs an exec gives nothing that the process did not have, and filterCalls
// allows none. To drop it takes a call for each capability by all threads.
func dropCapabilities(r Rules) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	var kept [2]uint32
	for _, c := range r.Capabilities {
		kept[c/32] |= 1 << (c % 32)
	}
	had := sets
	for i := range sets {
		sets[i] = unix.CapUserData{Effective: sets[i].Permitted & kept[i], Permitted: sets[i].Permitted & kept[i]}
	}
	if sets == had { // a service manager may not allow the call
		return nil
	}
	if err := signals(); err != nil {
		return err
	}
	_, _, errno := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets[0])), 0)
	runtime.KeepAlive(&sets)
	if errno != 0 {
		return os.NewSyscallError("capset", errno)
	}
	return nil
}

func noNewPrivileges() error {
	if err := signals(); err != nil {
		return err
	}
	_, _, errno := psx.Syscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	if errno != 0 {
		return os.NewSyscallError("prctl", errno)
	}
	return nil
}

// known gives of the names those that an architecture has, each once, without socket.
func known(info *arch.Info, calls []string) (names []string) {
	seen := map[string]bool{"socket": true}
	for _, name := range calls {
		if _, ok := info.SyscallNames[name]; !ok && name == "newfstatat" {
			name = "fstatat" // as the table for arm64 has it
		}
		if _, ok := info.SyscallNames[name]; ok && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}

// filterCalls has this thread gain no privileges and gives it the filter; the kernel
// brings both to the others (SECCOMP_FILTER_FLAG_TSYNC, seccomp(2)).
func filterCalls(r Rules) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	info, err := arch.GetInfo("")
	if err != nil {
		return fmt.Errorf("seccomp: %w: %w", ErrUnsupported, err)
	}
	names := known(info, r.Calls)
	local := []seccomp.NameWithConditions{}
	for _, family := range []uint64{unix.AF_UNIX, unix.AF_NETLINK} {
		local = append(local, seccomp.NameWithConditions{Name: "socket", Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.Equal, Value: family}}})
	}
	err = seccomp.LoadFilter(seccomp.Filter{
		NoNewPrivs: true,
		Flag:       seccomp.FilterFlagTSync,
		Policy: seccomp.Policy{
			DefaultAction: seccomp.ActionErrno, // EPERM
			Syscalls:      []seccomp.SyscallGroup{{Names: names, NamesWithCondtions: local, Action: seccomp.ActionAllow}},
		},
	})
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}
