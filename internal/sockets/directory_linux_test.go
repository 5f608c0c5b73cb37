package sockets

import (
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// All users can enter the machine's directory, whichever program creates it and whatever the
// umask is.
func TestMakeDir(t *testing.T) {
	for _, umask := range []int{0, 0o022, 0o077, 0o777} {
		top := t.TempDir()
		shared := filepath.Join(top, "exanet")
		for _, tt := range []struct {
			dir   string
			mode  fs.FileMode
			modes map[string]fs.FileMode
		}{
			{"exanet/qemu", 0o700, map[string]fs.FileMode{"exanet": 0o755, "exanet/qemu": 0o700}},
			{"exanet/", 0o700, map[string]fs.FileMode{"exanet": 0o755}},
			{"exanet", 0o755, map[string]fs.FileMode{"exanet": 0o755}},
			{"exanets", 0o700, map[string]fs.FileMode{"exanets": 0o700}},
		} {
			for d := range tt.modes {
				if err := os.RemoveAll(filepath.Join(top, d)); err != nil {
					t.Fatal(err)
				}
			}
			old := unix.Umask(umask)
			err := makeDir(shared, top+"/"+tt.dir, tt.mode)
			again := makeDir(shared, filepath.Join(top, tt.dir), 0o711)
			unix.Umask(old)
			if err != nil || again != nil {
				t.Errorf("%s: %v, %v", tt.dir, err, again)
			}
			for d, want := range tt.modes {
				if info, err := os.Stat(filepath.Join(top, d)); err != nil || info.Mode().Perm() != want {
					t.Errorf("umask %#o, %s: %s has mode %v (%v), want %v", umask, tt.dir, d, info, err, want)
				}
			}
		}
		file := filepath.Join(top, "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := makeDir(shared, file, 0o700); err == nil {
			t.Error("a file is accepted as a directory")
		}
	}
}

const whyEnv = "EXANET_SOCKETS_TEST_WHY"

func TestMain(m *testing.M) {
	if path := os.Getenv(whyEnv); path != "" {
		_, err := net.Dial("unix", path)
		os.Stdout.WriteString(Why(path, err))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The explanation names the directory that a client may not enter, a stale socket, and a
// directory that was replaced.
func TestWhy(t *testing.T) {
	top, err := os.MkdirTemp("", "exanet-why-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	if err := os.Chmod(top, 0o755); err != nil {
		t.Fatal(err)
	}
	barred := filepath.Join(top, "a", "barred")
	if err := os.MkdirAll(filepath.Join(barred, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(barred, 0o700); err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(top, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for path, want := range map[string]string{
		filepath.Join(barred, "in", "s"): "may not enter directory " + barred + ", of uid 0 with mode 0700",
		stale:                            "nobody listens",
		filepath.Join(top, "none"):       "",
	} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), whyEnv+"="+path)
		if strings.Contains(path, "barred") {
			if os.Geteuid() != 0 {
				continue // root's directory, with another user
			}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4001, Gid: 4001}}
		}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) || (want == "") != (len(out) == 0) {
			t.Errorf("%s: %q (%v), want %q", path, out, err, want)
		}
	}
	// A mount of a removed directory shows the removal; so does a working directory.
	gone := filepath.Join(top, "gone")
	if err := os.Mkdir(gone, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(gone)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	if out := Why("./s", syscall.ENOENT); !strings.Contains(out, "was removed") {
		t.Errorf("in a removed directory: %q", out)
	}
}
