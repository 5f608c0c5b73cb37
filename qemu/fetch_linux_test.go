package qemu

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"
)

// kernelTar creates a kernel's packages in the format that dpkg-deb prints.
func kernelTar(t *testing.T, path string) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range map[string][]byte{
		"./usr/lib/modules/1/vmlinuz":                               []byte("image"),
		"./usr/lib/modules/1/kernel/drivers/vfio/vfio.ko.xz":        object("depends=\x00"),
		"./usr/lib/modules/1/kernel/drivers/vfio_iommu_type1.ko.xz": object("depends=vfio\x00"),
		"./usr/lib/modules/1/kernel/drivers/vfio-pci.ko.xz":         object("depends=vfio\x00"),
	} {
		if strings.HasSuffix(name, ".xz") {
			var packed bytes.Buffer
			x, err := xz.NewWriter(&packed)
			if err == nil {
				_, err = x.Write(text)
			}
			if err = errors.Join(err, x.Close()); err != nil {
				t.Fatal(err)
			}
			text = packed.Bytes()
		}
		err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))})
		if err == nil {
			_, err = w.Write(text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), os.WriteFile(path, b.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// fakes puts an apt-get and a dpkg-deb first on PATH, which write their arguments to log. A
// file FAIL-DOWNLOAD or FAIL-UNPACK in dir makes them fail.
func fakes(t *testing.T, dir string) {
	t.Helper()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	kernelTar(t, filepath.Join(dir, "kernel.tar"))
	for name, text := range map[string]string{
		"apt-get": `echo "apt-get $*" >>"$FAKE/log"
case "$*" in
indextargets*) echo "http://mirror.invalid/debian/ bookworm main" ;;
*update) : >../lists/mirror_Packages.lz4 ;;
*--print-uris*linux-image*) echo "'u' linux-image-1.2.3+deb-cloud-amd64_1_amd64.deb 3 h"; echo "'u' kmod_1_amd64.deb 3 h" ;;
*--print-uris*) echo "'u' busybox-static_1_amd64.deb 3 h" ;;
*download*) [ ! -e "$FAKE/FAIL-DOWNLOAD" ] || { echo "Connection failed" >&2; exit 100; }
	for w; do case $w in *=*) printf deb >"${w%%=*}_${w#*=}_amd64.deb" ;; esac; done ;;
esac`,
		"dpkg-deb": `echo "dpkg-deb $*" >>"$FAKE/log"
[ ! -e "$FAKE/FAIL-UNPACK" ] || { echo "No space left on device" >&2; exit 2; }
case "$1" in
--fsys-tarfile) cat "$FAKE/kernel.tar" ;;
-x) mkdir -p "$3/usr/bin"; echo busybox >"$3/usr/bin/busybox" ;;
esac`,
		(&Cache{}).program(): "echo QEMU emulator version 11.1.3",
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("FAKE", dir)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

// A setup that the network or the disk interrupts reports that, and continues where it stopped.
// When everything is fetched it uses no network.
func TestFetchGoesOn(t *testing.T) {
	dir := t.TempDir()
	fakes(t, dir)
	c := &Cache{Dir: filepath.Join(dir, "cache")}
	touch := func(name string) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	log := func() string {
		b, err := os.ReadFile(filepath.Join(dir, "log"))
		if err != nil {
			return ""
		}
		remove("log")
		return string(b)
	}
	touch("FAIL-DOWNLOAD")
	err := c.Fetch(t.Context(), What{})
	if !errors.Is(err, ErrArchive) || !strings.Contains(err.Error(), "Connection failed") || !strings.Contains(err.Error(), "exanetctl qemu setup again") {
		t.Errorf("without a network: %v", err)
	}
	if said := log(); !strings.Contains(said, "update") || !strings.Contains(said, "-t "+backports) {
		t.Errorf("it used the archive:\n%s", said)
	}
	remove("FAIL-DOWNLOAD")
	touch("FAIL-UNPACK")
	if err := c.Fetch(t.Context(), What{}); !errors.Is(err, ErrArchive) || !strings.Contains(err.Error(), "No space left") {
		t.Errorf("without space: %v", err)
	}
	if said := log(); strings.Contains(said, "update") || !strings.Contains(said, "download busybox-static=1") {
		t.Errorf("it did not use the resolved packages:\n%s", said)
	}
	remove("FAIL-UNPACK")
	if err := c.Fetch(t.Context(), What{}); err != nil {
		t.Fatal(err)
	}
	if said := log(); strings.Contains(said, "busybox-static=1") || !strings.Contains(said, "download linux-image-1.2.3+deb-cloud-amd64=1") || strings.Contains(said, "kmod=1") {
		t.Errorf("it fetched existing packages again, or other packages than the kernel's:\n%s", said)
	}
	for _, name := range []string{"root/usr/bin/busybox", "kernel/vmlinuz", "kernel/modules/00-vfio.ko", "kernel/modules/01-vfio_iommu_type1.ko", "kernel/modules/02-vfio_pci.ko"} {
		if !exists(c.path(name)) {
			t.Errorf("%s is missing", name)
		}
	}
	if err := c.Fetch(t.Context(), What{}); err != nil || log() != "" {
		t.Errorf("with all packages present: %v, and it used the archive", err)
	}
	if err := os.RemoveAll(c.path("root")); err != nil {
		t.Fatal(err)
	}
	if err := c.Fetch(t.Context(), What{Debian: true}); err != nil || !exists(c.path("root", "usr", "bin", "busybox")) || !exists(c.path("debian", "files")) {
		t.Errorf("with Debian, and a missing part: %v", err)
	}
	if said := log(); !strings.Contains(said, "update\n") || !strings.Contains(said, "download busybox-static=1") || !strings.Contains(said, "Dir::Cache::archives=") {
		t.Errorf("packages resolved before the lists were removed were not fetched:\n%s", said)
	}
	if err := c.Fetch(t.Context(), What{Refresh: true}); err != nil || !strings.Contains(log(), "update") {
		t.Errorf("refreshing: %v", err)
	}
}
