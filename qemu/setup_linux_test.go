package qemu

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// mirror is an HTTP archive with a few packages, which the machine's own apt-get uses.
type mirror struct {
	*httptest.Server
	files map[string][]byte

	mu   sync.Mutex
	cut  string   // files whose names contain this are sent incompletely
	told []string // names of the sent packages
}

func (m *mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, ok := m.files[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	m.mu.Lock()
	cut := m.cut != "" && strings.Contains(r.URL.Path, m.cut)
	if strings.HasSuffix(r.URL.Path, ".deb") {
		m.told = append(m.told, filepath.Base(r.URL.Path))
	}
	m.mu.Unlock()
	if cut {
		w.Header().Set("Content-Length", fmt.Sprint(len(b)))
		_, _ = w.Write(b[:len(b)/2])
		panic(http.ErrAbortHandler)
	}
	http.ServeContent(w, r, r.URL.Path, changed(os.Args[0]), bytes.NewReader(b))
}

func (m *mirror) cutting(part string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut = part
}

// sent returns the packages that were sent since its last call.
func (m *mirror) sent() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() { m.told = nil }()
	return m.told
}

const (
	kernelName = "linux-image-1.2.3+deb-cloud-amd64"
	bulk       = 300 << 10 // of the kernel's image; its package is not compressed
)

// newMirror serves packages, and makes apt-get use it.
func newMirror(t *testing.T, dir string) *mirror {
	t.Helper()
	for _, program := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("the archive's client: %v", err)
		}
	}
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		t.Fatal(err)
	}
	m := &mirror{files: map[string][]byte{}}
	var index strings.Builder
	add := func(name, depends string, files map[string][]byte) {
		root := filepath.Join(dir, "build", name)
		control := fmt.Sprintf("Package: %s\nVersion: 1\nArchitecture: amd64\nMaintainer: none <none@invalid>\nDescription: none\n", name)
		if depends != "" {
			control += "Depends: " + depends + "\n"
		}
		if files == nil {
			files = map[string][]byte{}
		}
		files["DEBIAN/control"] = []byte(control)
		for path, b := range files {
			path = filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, b, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		deb := filepath.Join(dir, name+".deb")
		if out, err := exec.Command("dpkg-deb", "-Znone", "--build", root, deb).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		b, err := os.ReadFile(deb)
		if err != nil {
			t.Fatal(err)
		}
		path := "pool/" + name + "_1_amd64.deb"
		m.files["/debian/"+path] = b
		fmt.Fprintf(&index, "%sFilename: %s\nSize: %d\nSHA256: %x\n\n", control, path, len(b), sha256.Sum256(b))
	}
	modules := map[string][]byte{}
	kernelTar(t, filepath.Join(dir, "kernel.tar"))
	if out, err := exec.Command("tar", "-C", dir, "-xf", filepath.Join(dir, "kernel.tar")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"vmlinuz", "kernel/drivers/vfio/vfio.ko.xz", "kernel/drivers/vfio_iommu_type1.ko.xz", "kernel/drivers/vfio-pci.ko.xz"} {
		name = "usr/lib/modules/1/" + name
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		modules[name] = b
	}
	modules["usr/lib/modules/1/vmlinuz"] = bytes.Repeat([]byte{1}, bulk)
	add("busybox-static", "", map[string][]byte{"usr/bin/busybox": []byte("busybox")})
	add("bpftool", "", nil)
	add(kernelName, "", modules)
	add("linux-image-cloud-amd64", kernelName, nil)
	for _, s := range []string{suite, backports} {
		packages := index.String()
		at := "/debian/dists/" + s + "/"
		m.files[at+"main/binary-amd64/Packages"] = []byte(packages)
		m.files[at+"Release"] = fmt.Appendf(nil, "Suite: %s\nCodename: %s\nArchitectures: amd64\nComponents: main\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n %x %d main/binary-amd64/Packages\n",
			s, s, sha256.Sum256([]byte(packages)), len(packages))
	}
	m.Server = httptest.NewServer(m)
	t.Cleanup(m.Close)
	// The machine's apt-get, with other package sources and without signatures.
	bin := filepath.Join(dir, "bin")
	for name, text := range map[string]string{
		"apt-get": `case $1 in
indextargets) echo "` + m.URL + `/debian/ ` + suite + ` main" ;;
*) exec ` + apt + ` "$@" -o Acquire::Retries=0 -o Acquire::AllowInsecureRepositories=true -o APT::Get::AllowUnauthenticated=true ;;
esac`,
		(&Cache{}).program(): "echo QEMU emulator version 11.1.3",
	} {
		if err := os.MkdirAll(bin, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return m
}

// broken checks the error of an interrupted setup.
func broken(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "run exanetctl qemu setup again: it continues where it stopped") {
		t.Errorf("%s: %v", what, err)
	}
	t.Logf("%s: %v", what, err)
}

// The network fails at each point of setup, with the machine's own apt-get. The failure is
// reported, and no file is fetched twice.
func TestNetworkFails(t *testing.T) {
	dir := t.TempDir()
	m := newMirror(t, dir)
	c := &Cache{Dir: filepath.Join(dir, "cache")}
	m.cutting("Packages")
	broken(t, "cut in the lists", c.Fetch(t.Context(), What{}))
	m.cutting("busybox")
	broken(t, "cut in the first package", c.Fetch(t.Context(), What{}))
	m.cutting(kernelName)
	broken(t, "cut in the kernel", c.Fetch(t.Context(), What{}))
	m.cutting("")
	m.sent()
	if err := c.Fetch(t.Context(), What{}); err != nil {
		t.Fatal(err)
	}
	if sent := m.sent(); len(sent) != 1 || !strings.HasPrefix(sent[0], kernelName) {
		t.Errorf("the last time it fetched %v, want the kernel alone", sent)
	}
	m.Close()
	if err := c.Fetch(t.Context(), What{}); err != nil {
		t.Errorf("without a network, with all packages present: %v", err)
	}
	broken(t, "refused", c.Fetch(t.Context(), What{Refresh: true}))
}

// smallDisk is set if the test has its own mounts.
const smallDisk = "EXANET_TEST_SMALL_DISK"

// The disk is full in the middle of setup. That is reported, and setup continues when there is
// room.
func TestDiskFull(t *testing.T) {
	if os.Getenv(smallDisk) == "" {
		c := exec.Command(os.Args[0], "-test.run=^TestDiskFull$", "-test.v")
		c.Env = append(os.Environ(), smallDisk+"=1")
		c.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWNS | unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
		out, err := c.CombinedOutput()
		if c.Process == nil {
			t.Skipf("mounts of its own: %v", err)
		}
		if err != nil || !bytes.Contains(out, []byte("--- PASS: TestDiskFull")) {
			t.Errorf("%v: %s", err, out)
		}
		t.Logf("%s", out)
		return
	}
	dir := t.TempDir()
	m := newMirror(t, dir)
	c := &Cache{Dir: filepath.Join(dir, "cache")}
	if err := os.Mkdir(c.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	size := func(flags uintptr, kb int) {
		if err := unix.Mount("small", c.Dir, "tmpfs", flags, fmt.Sprintf("size=%dk", kb)); err != nil {
			t.Fatal(err)
		}
	}
	size(0, 96) // smaller than the lists, then than the kernel's package, then than the package with its image
	defer func() {
		if err := unix.Unmount(c.Dir, 0); err != nil {
			t.Error(err)
		}
	}()
	var failed []int
	for kb := 96; ; kb += 96 {
		size(unix.MS_REMOUNT, kb)
		err := c.Fetch(t.Context(), What{})
		if err == nil {
			break
		}
		failed = append(failed, kb)
		if text := err.Error(); !strings.Contains(text, "o space left") && !strings.Contains(text, "enough free space") && !strings.Contains(text, "exanetctl qemu setup again") {
			t.Errorf("with %d kB: %v", kb, err)
		}
		t.Logf("with %d kB: %v", kb, err)
		if kb > 4<<10 {
			t.Fatal("it needs more and more space")
		}
	}
	if len(failed) < 2 {
		t.Errorf("only with %v kB was it full", failed)
	}
	if b, err := os.ReadFile(c.path("kernel", "vmlinuz")); err != nil || len(b) != bulk {
		t.Errorf("the kernel has %d bytes, %v", len(b), err)
	}
	if sent := m.sent(); !slices.ContainsFunc(sent, func(s string) bool { return strings.HasPrefix(s, kernelName) }) {
		t.Errorf("it fetched %v", sent)
	}
}
