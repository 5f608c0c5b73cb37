package api

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/sockets"
)

// patience bounds every wait of these tests.
const patience = 2 * time.Minute

const childEnv = "PFD_API_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "connect" {
		c, err := net.Dial("unix", os.Getenv("PFD_TEST_SOCKET"))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		defer c.Close()
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// statusOf returns the part of a status file that hasPtrace reads.
func statusOf(uids string, caps uint64) string {
	return fmt.Sprintf("Name:\tx\nUid:\t%s\nCapEff:\t%016x\nCapBnd:\t000001ffffffffff\n", uids, caps)
}

func TestHasPtrace(t *testing.T) {
	const ptrace = 1 << unix.CAP_SYS_PTRACE
	for _, tt := range []struct {
		name, status string
		uid          uint32
		want         bool
	}{
		{"root", statusOf("0\t0\t0\t0", ^uint64(0)), 0, true},
		{"a user with the capability", statusOf("7\t7\t7\t7", ptrace), 7, true},
		{"root without it", statusOf("0\t0\t0\t0", ^uint64(ptrace)), 0, false},
		{"a set-uid program of root's", statusOf("7\t0\t0\t0", ^uint64(0)), 7, false},
		{"one that has become root for good", statusOf("0\t0\t0\t0", ^uint64(0)), 7, false},
		{"nothing", "", 0, false},
		{"no number", "Uid:\t0\t0\t0\t0\nCapEff:\tx\n", 0, false},
	} {
		if got := hasPtrace([]byte(tt.status), tt.uid); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// A peer's rights follow from its capability in pfd's user namespace, not from its uid.
func TestPeerRights(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: giving up capabilities and becoming others")
	}
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("setpriv is not installed (util-linux)")
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip("unshare is not installed (util-linux)")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "rights")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	b, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	child, path := filepath.Join(dir, "child"), filepath.Join(dir, "s")
	if err := os.WriteFile(child, b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, file, err := sockets.Listen("unix", path, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	defer func() { _ = file.Remove() }()
	for _, tt := range []struct {
		name string
		args []string
		uid  uint32
		all  bool
	}{
		{"root", nil, 0, true},
		{"root without capabilities", []string{setpriv, "--bounding-set=-all", "--inh-caps=-all"}, 0, false},
		{"root without CAP_SYS_PTRACE", []string{setpriv, "--bounding-set=-sys_ptrace", "--inh-caps=-all"}, 0, false},
		{"a user", []string{setpriv, "--reuid=3100", "--regid=3100", "--clear-groups"}, 3100, false},
		{"a user with CAP_SYS_PTRACE", []string{setpriv, "--reuid=3100", "--regid=3100", "--clear-groups", "--inh-caps=+sys_ptrace", "--ambient-caps=+sys_ptrace"}, 3100, true},
		{"root of a namespace of a user's own", []string{setpriv, "--reuid=3100", "--regid=3100", "--clear-groups", unshare, "--user", "--map-root-user"}, 3100, false},
		{"root in another namespace", []string{unshare, "--user", "--map-root-user"}, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := append(append([]string{}, tt.args...), child)
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Env = append(os.Environ(), childEnv+"=connect", "PFD_TEST_SOCKET="+path)
			cmd.Dir = dir
			var said strings.Builder
			cmd.Stderr = &said
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				in.Close()
				_ = cmd.Wait()
			}()
			if err := l.SetDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			c, err := l.AcceptUnix()
			if err != nil {
				t.Fatalf("%v: %s", err, said.String())
			}
			defer c.Close()
			p, err := peerOf(c)
			if err != nil {
				t.Fatal(err)
			}
			if p.UID != tt.uid || p.All != tt.all {
				t.Errorf("%+v, want uid %d and all %v; it says %q", p, tt.uid, tt.all, said.String())
			}
		})
	}
}

// In a user namespace that does not map all users 65534 stands for several: it owns nothing.
func TestStrangersNumber(t *testing.T) {
	if os.Getenv("API_TEST_STRANGERS") == "" {
		c := exec.CommandContext(t.Context(), "unshare", "-U", os.Args[0], "-test.run=^TestStrangersNumber$", "-test.v")
		c.Env = append(os.Environ(), "API_TEST_STRANGERS=1")
		out, err := c.CombinedOutput()
		if strings.Contains(string(out), "unshare failed") {
			t.Skipf("no user namespace can be made here: %s", out)
		}
		if err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@" + t.Name() + strconv.Itoa(os.Getpid()), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if p, err := peerOf(c); err != nil || p.All || p.sees(65534) {
		t.Errorf("a client of a user that is not mapped: %+v, %v", p, err)
	}
}
