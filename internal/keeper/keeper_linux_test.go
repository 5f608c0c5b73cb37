package keeper

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func status(t *testing.T, pid int, field string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	t.Fatalf("no field %s in the status of %d", field, pid)
	return ""
}

func TestKeeperSharesTheAddressSpaceAndCanDoNothing(t *testing.T) {
	k, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	if v := status(t, k.PID(), "Seccomp"); v != "2" {
		t.Errorf("seccomp mode %s when Start returns", v)
	}
	const kcmpVM = 1 // KCMP_VM, linux/kcmp.h
	if r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(k.PID()), kcmpVM, 0, 0, 0); errno != 0 || r != 0 {
		t.Errorf("kcmp: %d, %v: another address space", r, errno)
	}
	if v := status(t, k.PID(), "NoNewPrivs"); v != "1" {
		t.Errorf("no_new_privs %s", v)
	}
	if v := status(t, k.PID(), "SigBlk"); v != "fffffffffffbfeff" && v != "fffffffe7ffbfeff" {
		t.Errorf("blocked signals %s, want all but SIGKILL and SIGSTOP", v)
	}
	fds, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(k.PID()), "fd"))
	if err != nil || len(fds) != 1 {
		t.Errorf("%d descriptors (%v), want only the locked file", len(fds), err)
	}
	va, proof := k.Proof()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", k.PID()))
	if err != nil {
		t.Fatal(err)
	}
	var b [ProofSize]byte
	if _, err := mem.ReadAt(b[:], int64(va)); err != nil || b != proof || proof == [ProofSize]byte{} {
		t.Errorf("proof %x, in memory %x (%v)", proof, b, err)
	}
	mem.Close()
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	if err := k.Close(); err != nil {
		t.Fatal("second Close: ", err)
	}
	if err := unix.Kill(k.PID(), 0); err == nil {
		t.Errorf("process %d still exists", k.PID())
	}
}

// TestKeeperEndsWithItsProcess makes a process exit, be killed, and execute another program,
// also while a forked child with all its descriptors lives. The keeper must end each time.
func TestKeeperEndsWithItsProcess(t *testing.T) {
	for _, how := range []string{"exit", "kill", "exec", "exit forked", "kill forked", "exec forked"} {
		t.Run(how, func(t *testing.T) {
			end, forked := strings.CutSuffix(how, " forked")
			cmd := exec.Command(os.Args[0], "-test.run=^$")
			cmd.Env = append(os.Environ(), "KEEPER_END="+end, fmt.Sprint("KEEPER_FORK=", forked))
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var pid, child int
			if _, err := fmt.Fscan(out, &pid, &child); err != nil {
				t.Fatal(err)
			}
			if child > 0 {
				defer unix.Kill(child, unix.SIGKILL)
			}
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			if end == "kill" {
				err = cmd.Process.Kill()
			} else {
				_, err = in.Write([]byte("\n"))
			}
			if err != nil {
				t.Fatal(err)
			}
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			for {
				n, err := unix.Poll(p, 30_000)
				if err == unix.EINTR {
					continue
				}
				if n != 1 || err != nil {
					t.Errorf("keeper %d lives on (%v)", pid, err)
				}
				break
			}
			_ = in.Close()
			_ = cmd.Wait() // the child was killed, as intended
		})
	}
}

// TestKeeperThatCannotBeBoundEnds starts keepers while the kernel refuses one of the calls that
// confine a keeper. Then there must be no keeper, and no task that holds the process's
// descriptors.
func TestKeeperThatCannotBeBoundEnds(t *testing.T) {
	for _, call := range []int{unix.SYS_CLOSE_RANGE, unix.SYS_PRCTL, unix.SYS_CLONE} {
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), "KEEPER_END=deny", fmt.Sprint("KEEPER_DENY=", call))
		out, err := cmd.CombinedOutput() // returns when no process has the write end of the pipe
		if err == nil || !strings.Contains(string(out), "making a keeper: ") || !strings.Contains(string(out), "operation not permitted") {
			t.Errorf("system call %d denied: %v, %s", call, err, out)
		}
	}
}

// deny makes the kernel refuse a system call of this thread.
func deny(nr uint32) error {
	runtime.LockOSThread()                                            // never unlocked
	const refuse, allow = 0x00050000 | uint32(unix.EPERM), 0x7fff0000 // SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW
	filter := []unix.SockFilter{
		{Code: bpfLoad, K: dataNumber},
		{Code: bpfJump, Jf: 1, K: nr},
		{Code: bpfRet, K: refuse},
		{Code: bpfRet, K: allow},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, 2, uintptr(unsafe.Pointer(&prog)), 0, 0)
}

// fork creates a sleeping child with all resources of this process.
func fork() int {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		for {
			unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
	}
	return int(pid)
}

func TestMain(m *testing.M) {
	end := os.Getenv("KEEPER_END")
	if end == "" {
		os.Exit(m.Run())
	}
	if end == "deny" {
		nr, err := strconv.ParseUint(os.Getenv("KEEPER_DENY"), 10, 32)
		if err == nil {
			err = deny(uint32(nr))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	k, err := Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	child := 0
	if os.Getenv("KEEPER_FORK") == "true" {
		child = fork()
	}
	fmt.Println(k.PID(), child)
	_, _ = os.Stdin.Read(make([]byte, 1))
	if end == "exec" {
		err := unix.Exec("/bin/cat", []string{"cat"}, nil)
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func TestStartAndCloseLeakNothing(t *testing.T) {
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	maps := func() int {
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(b, []byte("\n"))
	}
	fds := count()
	var lines int
	for i := range 200 {
		k, err := Start()
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
		if i == 100 {
			lines = maps()
		}
	}
	if n := count(); n != fds {
		t.Errorf("%d descriptors, %d before", n, fds)
	}
	if n := maps(); n > lines+8 {
		t.Errorf("%d mappings, %d before", n, lines)
	}
}
