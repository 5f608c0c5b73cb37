package sandbox

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// Apply takes what r does not keep from all threads of the process, and gives the
// steps that could not be taken.
func Apply(r Rules) []Missing {
	var missing []Missing
	for _, s := range []struct {
		step Step
		take func(Rules) error
	}{
		{StepFiles, restrictFiles},
		{StepCapabilities, dropCapabilities},
		{StepPrivileges, noNewPrivileges},
		{StepCalls, filterCalls}, // last: the others' calls are not kept
	} {
		if err := s.take(r); err != nil {
			missing = append(missing, Missing{s.step, err})
		}
	}
	return missing
}

func restrictFiles(r Rules) error {
	if r.Files == nil {
		return nil
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
// are, and none in the others.
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
	var errs []error
	// Needs CAP_SETPCAP. Without it no_new_privs holds: what is in the bounding set
	// comes back by an exec only.
	if sets[unix.CAP_SETPCAP/32].Effective&(1<<(unix.CAP_SETPCAP%32)) != 0 {
		for c := range 64 {
			if kept[c/32]&(1<<(c%32)) != 0 {
				continue
			}
			err := prctl(unix.PR_CAPBSET_DROP, uintptr(c))
			if errors.Is(err, unix.EINVAL) {
				break // past the kernel's last one
			}
			errs = append(errs, err)
		}
	}
	errs = append(errs, prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL))
	had := sets
	for i := range sets {
		sets[i] = unix.CapUserData{Effective: sets[i].Permitted & kept[i], Permitted: sets[i].Permitted & kept[i]}
	}
	if sets == had { // a service manager may not allow the call
		return errors.Join(errs...)
	}
	_, _, errno := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets[0])), 0)
	runtime.KeepAlive(&sets)
	if errno != 0 {
		errs = append(errs, os.NewSyscallError("capset", errno))
	}
	return errors.Join(errs...)
}

func noNewPrivileges(Rules) error { return prctl(unix.PR_SET_NO_NEW_PRIVS, 1) }

// prctl is prctl(2) by all threads.
func prctl(option, arg uintptr) error {
	if _, _, errno := psx.Syscall6(unix.SYS_PRCTL, option, arg, 0, 0, 0, 0); errno != 0 {
		return os.NewSyscallError("prctl", syscall.Errno(errno))
	}
	return nil
}

func filterCalls(r Rules) error {
	info, err := arch.GetInfo("")
	if err != nil {
		return fmt.Errorf("seccomp: %w: %w", ErrUnsupported, err)
	}
	seen := map[string]bool{"socket": true} // below
	var names []string
	for _, name := range r.Calls {
		if _, ok := info.SyscallNames[name]; ok && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
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
