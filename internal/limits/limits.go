// Package limits names the limit of the process or of the machine that caused an error.
package limits

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Remedy returns the resource that err reports as exhausted and how to raise its limit, or "".
func Remedy(err error) string {
	switch {
	case errors.Is(err, unix.EMFILE):
		return "out of descriptors (ulimit -n, LimitNOFILE= of a unit)"
	case errors.Is(err, unix.ETOOMANYREFS):
		return "this user has more descriptors under way in sockets than a process may have open (ulimit -n, LimitNOFILE= of a unit)"
	case errors.Is(err, unix.ENFILE):
		return "this machine is out of file descriptors (sysctl fs.file-max)"
	case errors.Is(err, unix.EFBIG):
		return "files, shared memory among them, may not be as large (ulimit -f, LimitFSIZE= of a unit)"
	case errors.Is(err, unix.ENOMEM):
		return "out of memory"
	}
	return ""
}

// Room returns an error that matches EMFILE unless this process can open n more descriptors.
func Room(n int) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return Explain(err)
	}
	if uint64(len(open)+n) > l.Cur {
		return Explain(fmt.Errorf("%w: the limit is %d descriptors, %d are open, and %d more are needed", unix.EMFILE, l.Cur, len(open), n))
	}
	return nil
}

// RemedyOr returns the Remedy of err, or other if it has none.
func RemedyOr(err error, other string) string { return cmp.Or(Remedy(err), other) }

// Explain returns err with its Remedy, if it has one and does not contain it already.
func Explain(err error) error {
	if r := Remedy(err); r != "" && !strings.Contains(err.Error(), r) {
		return fmt.Errorf("%w: %s", err, r)
	}
	return err
}
