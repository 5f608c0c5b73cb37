package rdma

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
)

func TestPollAllocatesNothing(t *testing.T) {
	e := attachTo(t, startFake(t, nil))
	held := mustWrite(t, e, WriteRequest{Src: pattern(64), Dst: remote(e, t, make([]byte, 64), toPause)})
	copied := mustWrite(t, e, WriteRequest{Src: pattern(64), Dst: remote(e, t, make([]byte, 64), toCopy)})
	if err := copied.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tr := range []*Transfer{held, copied} {
		if n := testing.AllocsPerRun(1000, func() { tr.Poll() }); n != 0 {
			t.Errorf("%v: %v allocations", tr.Poll(), n)
		}
	}
}

func BenchmarkPoll(b *testing.B) {
	p, err := attach.NewPages(make([]byte, attach.MemorySize))
	if err != nil {
		b.Fatal(err)
	}
	p.SetDone(0, device.DoneOngoing, 0, 0)
	tr := &Transfer{ep: &Endpoint{pages: p}}
	b.ReportAllocs()
	for b.Loop() {
		tr.Poll()
	}
}

const pollEnv = "RDMA_TEST_POLL"

// pollMain polls on a thread that may make only write and sigreturn: at any other system call the
// kernel kills the process (seccomp(2)).
func pollMain() int {
	p, err := attach.NewPages(make([]byte, attach.MemorySize))
	if err != nil {
		return 1
	}
	tr := &Transfer{ep: &Endpoint{pages: p}}
	sum := 0
	poll := func(n int) {
		for i := range n {
			p.SetDone(0, device.DoneOngoing, 0, uint8(i&1))
			sum += int(tr.Poll())
		}
	}
	poll(1000)
	other := os.Getenv(pollEnv) == "other"
	if err := forbidCalls(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	poll(1000)
	if other {
		unix.Getppid()
	}
	_, _ = unix.Write(1, []byte("polled"))
	unix.Getppid() // the end
	return 0
}

// forbidCalls makes the kernel kill the process when the calling thread makes any system call but
// write and rt_sigreturn.
func forbidCalls() error {
	runtime.LockOSThread()
	const loadNr, jumpEq, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	filter := []unix.SockFilter{
		{Code: loadNr}, // seccomp_data.nr
		{Code: jumpEq, K: unix.SYS_WRITE, Jt: 2},
		{Code: jumpEq, K: unix.SYS_RT_SIGRETURN, Jt: 1},
		{Code: ret, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: ret, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
}

// TestPollMakesNoSystemCall: a thread without system calls can poll. The second case shows that
// the test would detect one.
func TestPollMakesNoSystemCall(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(mode string) string {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), pollEnv+"="+mode, "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1")
		cmd.Stdout = w
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		b := make([]byte, 64)
		n, _ := io.ReadFull(r, b[:len("polled")])
		r.Close()
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGSYS {
			t.Fatalf("the polling process ended with %v, want death by SIGSYS", err)
		}
		return string(b[:n])
	}
	if got := run("other"); got != "" {
		t.Fatalf("a thread that made another system call lived to say %q", got)
	}
	// The Go scheduler itself may make a system call on that thread if 1000 polls take more than
	// its 10 ms on a busy machine; Poll would make one each time.
	for range 10 {
		if run("poll") == "polled" {
			return
		}
	}
	t.Error("polling made a system call in each of 10 runs")
}
