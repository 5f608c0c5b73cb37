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

// Apply removes what r does not keep from all threads of the process. It returns the steps that
// it could not take.
func Apply(r Rules) []Missing {
	time.Sleep(settle)
	var missing []Missing
	for _, s := range []struct {
		step Step
		take func(Rules) error
	}{
		{StepFiles, restrictFiles},
		{StepCapabilities, dropCapabilities},
		{StepCalls, filterCalls}, // last: it forbids the calls of the other steps
	} {
		err := s.take(r)
		if err == nil {
			continue
		}
		missing = append(missing, Missing{s.step, err})
		if s.step == StepCalls { // the filter sets no_new_privs in all threads
			if err := noNewPrivileges(); err != nil {
				missing = append(missing, Missing{StepPrivileges, err})
			}
		}
	}
	return missing
}

// settle is how long a thread must be in a system call until the Go runtime's monitor has
// certainly taken its processor (its P): it does so at 10 ms, and checks again 10 ms later. The
// runtime stops all threads for a call that each of them must make. In Go 1.26
// (stopTheWorldWithSema) the stop misses a thread if the monitor checks its system call at that
// moment, and then waits until that call returns, or for a minute. This was seen once in 20,000
// stops, beside threads that had just begun to wait. A thread that has lost its P is not
// missed.
const settle = 25 * time.Millisecond

func restrictFiles(r Rules) error {
	if r.Files == nil {
		return nil
	}
	if err := signals(); err != nil {
		return err
	}
	// The rights of Landlock ABI 5 (Linux 6.10). An older kernel uses those that it knows. TCP
	// sockets can no longer be bound or connected.
	c := landlock.V5
	if err := c.Restrict(rulesFor(r.Files)...); err == nil {
		return nil
	}
	if err := c.BestEffort().Restrict(rulesFor(r.Files)...); err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	return fmt.Errorf("landlock: %w in full: this kernel enforces at most some of its rules", ErrUnsupported)
}

// signals returns an error unless the kernel can queue a signal for each thread. For a call
// that all threads make, the runtime signals each of them (syscall.AllThreadsSyscall), and
// waits forever for a thread whose signal is lost (setrlimit(2), RLIMIT_SIGPENDING: all
// processes of this user count).
func signals() error {
	status, _ := os.ReadFile("/proc/self/status") // if unreadable, assume that the signals fit
	var queued, most, threads uint64
	queue, _ := procstatus.Field(status, "SigQ")
	count, _ := procstatus.Field(status, "Threads")
	if n, _ := fmt.Sscanf(queue+" "+count, "%d/%d %d", &queued, &most, &threads); n == 3 && queued+2*threads > most {
		return fmt.Errorf("%w: %d threads need a signal each, and of at most %d queued signals this user's processes have %d (ulimit -i, LimitSIGPENDING= of a unit)",
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

// dropCapabilities keeps the capabilities of r in the permitted and effective sets, if they are
// there, and empties the inheritable and ambient sets. The bounding set stays: under
// no_new_privs an exec adds nothing, and filterCalls forbids exec. Dropping it takes one call
// per capability in all threads.
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
	if sets == had { // a service manager may forbid the call
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

// known returns the names that an architecture has, without duplicates and without socket.
func known(info *arch.Info, calls []string) (names []string) {
	seen := map[string]bool{"socket": true}
	for _, name := range calls {
		if _, ok := info.SyscallNames[name]; !ok && name == "newfstatat" {
			name = "fstatat" // its name in the table for arm64
		}
		if _, ok := info.SyscallNames[name]; ok && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}

// filterCalls sets no_new_privs and the filter in this thread; the kernel applies both to all
// other threads (SECCOMP_FILTER_FLAG_TSYNC, seccomp(2)).
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
