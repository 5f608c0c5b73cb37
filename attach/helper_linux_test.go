package attach

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	cases "github.com/exanet/pfd/internal/golden"
	"github.com/exanet/pfd/space/proc"
)

// closedEnv passes a socket's path to a process that attaches there with its descriptors 0 to 2
// closed.
const closedEnv = "PFD_ATTACH_TEST_CLOSED"

func TestMain(m *testing.M) {
	switch path := os.Getenv(closedEnv); {
	case len(os.Args) == 2 && os.Args[1] == HelperCommand:
		os.Exit(reportingHelper())
	case path != "":
		os.Exit(attachClosed(path))
	}
	// Helpers must not inherit the descriptors with which the test was started.
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// report is a helper's report about itself.
type report struct {
	PID, Group, Process, Keeper int
	Args, Env                   []string
	Dir                         string
	Files                       map[string]string
}

// reportingHelper is a helper that reports and then waits for the end of its socket.
func reportingHelper() int {
	r := report{PID: os.Getpid(), Args: os.Args, Env: os.Environ(), Files: map[string]string{}}
	r.Process, _ = proc.PIDOf(HelperPIDFD)
	r.Keeper, _ = proc.PIDOf(HelperKeeper)
	r.Group = unix.Getpgrp()
	r.Dir, _ = os.Getwd()
	names, _ := os.ReadDir("/proc/self/fd")
	for _, n := range names {
		fd, _ := strconv.Atoi(n.Name())
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue // the listing itself; the Go runtime's own
		}
		what, err := os.Readlink("/proc/self/fd/" + n.Name())
		if err != nil {
			what = err.Error()
		}
		what, _, _ = strings.Cut(what, " ")
		r.Files[n.Name()], _, _ = strings.Cut(what, ":")
		if fd == HelperWake {
			r.Files[n.Name()] = what
		}
	}
	b, err := json.Marshal(r)
	if err != nil {
		return 1
	}
	if _, err := unix.Write(HelperSocket, b); err != nil {
		return 2
	}
	for {
		if n, err := unix.Read(HelperSocket, b); n == 0 || err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return 0
		}
	}
}

// port is pfd's side of a helper: the descriptors of a HELPER message. The eventfd is the
// attachment's.
type port struct {
	t                          testing.TB
	program                    *os.File
	memory, own, socket, event int
}

func newPort(t testing.TB, event int) *port {
	t.Helper()
	p := &port{t: t, event: event}
	var err error
	if p.program, err = os.Open("/proc/self/exe"); err != nil {
		t.Fatal(err)
	}
	if p.memory, err = unix.MemfdCreate("port", unix.MFD_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	two, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	p.own, p.socket = two[0], two[1]
	return p
}

// ask sends the message and keeps pfd's end of the socket.
func (p *port) ask(c *Conn) {
	if err := c.AskHelper(int(p.program.Fd()), p.memory, p.socket, p.event); err != nil {
		p.t.Error(err)
	}
	if err := errors.Join(p.program.Close(), unix.Close(p.memory), unix.Close(p.socket)); err != nil {
		p.t.Error(err)
	}
}

// report waits for the helper's report.
func (p *port) report() (r report) {
	var b [4096]byte
	n, err := unix.Read(p.own, b[:])
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(p.own, b[:])
	}
	if err == nil {
		err = json.Unmarshal(b[:n], &r)
	}
	if err != nil {
		p.t.Errorf("the helper says %q: %v", b[:max(n, 0)], err)
	}
	return r
}

func (p *port) close() {
	if err := unix.Close(p.own); err != nil {
		p.t.Error(err)
	}
}

// sameMemory reports whether two tasks share an address space.
func sameMemory(a, b int) bool {
	const kcmpVM = 1 // KCMP_VM, linux/kcmp.h
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpVM, 0, 0, 0)
	return r == 0 && errno == 0
}

var helperFiles = map[string]string{
	"0": "/dev/null", "1": "/dev/null", "2": "/dev/null",
	"3": "/memfd", "4": "socket", "5": "anon_inode:[eventfd]", "6": "anon_inode", "7": "anon_inode",
}

// TestHelper starts a helper of this process, checks its report, and ends it in both ways: pfd
// closes its socket, or the process closes the connection.
func TestHelper(t *testing.T) {
	for _, end := range []string{"by pfd", "by the process"} {
		t.Run(end, func(t *testing.T) {
			noLeak(t)
			reports, leave := make(chan report, 1), make(chan struct{})
			path := serve(t, func(ctx context.Context, c *Conn) {
				m := offer(t, ctx, c)
				if m == nil {
					return
				}
				defer m.Close()
				keeper, err := proc.PIDOf(c.Peer().Keeper)
				if err != nil || !sameMemory(keeper, os.Getpid()) {
					t.Errorf("keeper %d (%v)", keeper, err)
				}
				p := newPort(t, m.WakeFD())
				p.ask(c)
				r := p.report()
				if r.Keeper == keeper || !sameMemory(r.Keeper, keeper) {
					t.Errorf("pfd's keeper %d, the helper's %d: want two of one address space", keeper, r.Keeper)
				}
				reports <- r
				if err := c.Welcome(testWelcome); err != nil {
					t.Error(err)
				}
				<-leave
				p.close()
				_ = c.Hold(ctx, Handlers{})
			})
			c := dial(t, path)
			_, fds, err := c.Handshake(t.Context(), Hello{Group: "g"})
			if err != nil {
				t.Fatal(err)
			}
			if flags, err := unix.FcntlInt(uintptr(fds[1]), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
				t.Errorf("the eventfd, which is pfd's as well, has flags %#x (%v): want O_NONBLOCK", flags, err)
			}
			fds.Close()
			r := <-reports
			want := report{
				PID: r.PID, Group: r.PID, Process: os.Getpid(), Keeper: r.Keeper,
				Args: []string{"pfd", HelperCommand}, Env: []string{}, Dir: "/", Files: helperFiles,
			}
			for _, fd := range []string{"6", "7"} { // pidfs has names of its own since Linux 6.9
				if r.Files[fd] == "pidfd" {
					r.Files[fd] = "anon_inode"
				}
			}
			if !reflect.DeepEqual(r, want) {
				t.Errorf("the helper finds\n%+v, want\n%+v", r, want)
			}
			pidfd, err := unix.PidfdOpen(r.PID, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(pidfd)
			if end == "by pfd" {
				close(leave)
				for {
					n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 30_000)
					if errors.Is(err, unix.EINTR) {
						continue
					}
					if n != 1 || err != nil {
						t.Errorf("the helper lives on (%v)", err)
					}
					break
				}
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); !errors.Is(err, unix.ESRCH) {
				t.Errorf("helper %d after Close: %v, want ended and reaped", r.PID, err)
			}
			if end != "by pfd" {
				close(leave)
			}
		})
	}
}

// TestStartHelperRefuses: a program does not run just because pfd sent it.
func TestStartHelperRefuses(t *testing.T) {
	noLeak(t)
	dir := t.TempDir()
	file := func(name string, mode os.FileMode, uid int) int {
		path := filepath.Join(dir, name)
		exe, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		err = os.WriteFile(path, exe, 0o700)
		if err == nil {
			err = os.Chmod(path, mode)
		}
		if err == nil && uid != os.Getuid() {
			err = os.Chown(path, uid, -1)
		}
		fd := -1
		if err == nil {
			fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	open := func(path string) int {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	memfd, err := unix.MemfdCreate("program", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	self := os.Getuid()
	type row struct {
		name    string
		program int
		fds     int
		want    error
	}
	rows := []row{
		{"writable by the group", file("group", 0o775, self), HelperFDs, ErrProgram},
		{"writable by others", file("others", 0o757, self), HelperFDs, ErrProgram},
		{"memfd, writable by others", memfd, HelperFDs, ErrProgram},
		{"directory", open(dir), HelperFDs, ErrProgram},
		{"device", open("/dev/null"), HelperFDs, ErrProgram},
		{"not executable", file("plain", 0o600, self), HelperFDs, os.ErrPermission},
		{"no descriptor", open("/dev/null"), 0, ErrMessage},
		{"three descriptors", open("/proc/self/exe"), 3, ErrMessage},
		{"five descriptors", open("/proc/self/exe"), 5, ErrMessage},
	}
	if self == 0 {
		rows = append(rows, row{"of another user", file("other", 0o755, 65534), HelperFDs, ErrProgram})
	} else {
		t.Log("only root can make a file of another user: that row is left out")
	}
	path := serve(t, func(ctx context.Context, c *Conn) { _ = c.Hold(ctx, Handlers{}) })
	for _, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			c := dial(t, path)
			event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
			if err != nil {
				t.Fatal(err)
			}
			p := newPort(t, event)
			p.program.Close()
			fds := append(Descriptors{tt.program, p.memory, p.socket, p.event}, -1)[:tt.fds]
			if err := c.startHelper(HelperRequest{}, fds); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if c.helper != nil {
				t.Errorf("process %d runs", c.helper.Pid)
			}
			c.Close()
			for _, fd := range []int{tt.program, p.memory, p.socket, p.own, p.event} {
				unix.Close(fd)
			}
		})
	}
}

// libexanet has the same rule for an executable program.
func TestExecutable(t *testing.T) {
	cases.Rules(t, "testdata/rules.txt", "program", 5, func(w []string) string {
		mode, err := strconv.ParseUint(w[3], 8, 32)
		if err != nil {
			t.Fatal(err)
		}
		st := unix.Stat_t{Uid: cases.Number(t, w[0]), Mode: uint32(mode)}
		return cases.YesNo(executable(&st, cases.Number(t, w[1]), cases.Numbers(t, w[2])))
	})
}

// TestHelperAskedForTwice: a second request, and one with a descriptor too few, end the handshake.
// A started helper ends with the connection.
func TestHelperAskedForTwice(t *testing.T) {
	noLeak(t)
	for _, times := range []int{1, 2} {
		path := serve(t, func(ctx context.Context, c *Conn) {
			m := offer(t, ctx, c)
			if m == nil {
				return
			}
			defer m.Close()
			p := newPort(t, m.WakeFD())
			if times == 2 {
				p.ask(c)
				p.report()
			} else {
				p.program.Close()
				unix.Close(p.memory)
				unix.Close(p.socket)
			}
			h := HelperRequest{}
			if err := c.Send(h.Append(nil), p.event, p.event, p.event); err != nil {
				t.Error(err)
			}
			_ = c.Hold(ctx, Handlers{})
			p.close()
		})
		c := dial(t, path)
		if _, fds, err := c.Handshake(t.Context(), Hello{Group: "g"}); !errors.Is(err, ErrMessage) || fds != nil {
			t.Errorf("request %d: %v with %d descriptors, want ErrMessage", times, err, len(fds))
		}
		if (c.helper != nil) != (times == 2) {
			t.Errorf("request %d: helper %v", times, c.helper)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestHelperOfAProcessWithoutStandardFiles: descriptors of the process have the numbers that the
// helper's must have, and must not be overwritten.
func TestHelperOfAProcessWithoutStandardFiles(t *testing.T) {
	noLeak(t)
	path := serve(t, func(ctx context.Context, c *Conn) {
		m := offer(t, ctx, c)
		if m == nil {
			return
		}
		defer m.Close()
		p := newPort(t, m.WakeFD())
		p.ask(c)
		if r := p.report(); len(r.Files) != len(helperFiles) || !strings.HasPrefix(r.Files["4"], "socket") {
			t.Errorf("the helper finds %+v", r)
		}
		if err := c.Welcome(testWelcome); err != nil {
			t.Error(err)
		}
		_ = c.Hold(ctx, Handlers{})
		p.close()
	})
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), closedEnv+"="+path)
	if err := cmd.Run(); err != nil {
		t.Errorf("the process: %v", err)
	}
}

func attachClosed(path string) int {
	for fd := range 3 {
		if unix.Close(fd) != nil {
			return 2
		}
	}
	uc, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return 3
	}
	c, err := newConn(uc, false)
	if err != nil {
		return 4
	}
	_, fds, err := c.Handshake(context.Background(), Hello{Group: "g"})
	fds.Close()
	if err != nil {
		return 5
	}
	if c.Close() != nil {
		return 6
	}
	return 0
}

func TestHelperOfAnotherVersion(t *testing.T) {
	b := bytes.Clone(golden(t)["helper"])
	b[offProtocol] = 3
	var v *VersionError
	if err := endingError(b, HelperFDs, Product()); !errors.As(err, &v) || v.Peer != 3 {
		t.Errorf("%v, want both versions", err)
	}
}
