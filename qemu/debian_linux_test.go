package qemu

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cavaliergopher/cpio"
)

// A package's files become an archive for the kernel: below /usr, owned by root, and without
// files that a guest does not need.
func TestUnpackEntry(t *testing.T) {
	for _, c := range []struct {
		name  string
		entry tar.Header
		want  string // name, mode and text of the entry; "": none
	}{
		{"a file", tar.Header{Name: "./usr/bin/true", Typeflag: tar.TypeReg, Mode: 0o4755, Size: 4, Uid: 7}, "usr/bin/true 100755 text"},
		{"a directory", tar.Header{Name: "./usr/bin/", Typeflag: tar.TypeDir, Mode: 0o755}, "usr/bin 40755 "},
		{"a link", tar.Header{Name: "./usr/bin/sh", Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: "dash"}, "usr/bin/sh 120777 dash"},
		{"a file of two names", tar.Header{Name: "./usr/bin/b", Typeflag: tar.TypeLink, Mode: 0o755, Linkname: "./usr/bin/a"}, "usr/bin/b 120777 /usr/bin/a"},
		{"an old place", tar.Header{Name: "./lib/udev/x", Typeflag: tar.TypeReg, Mode: 0o644, Size: 4}, "usr/lib/udev/x 100644 text"},
		{"a place that is a link", tar.Header{Name: "./lib/", Typeflag: tar.TypeDir, Mode: 0o755}, ""},
		{"above the root", tar.Header{Name: "../../etc/x", Typeflag: tar.TypeReg, Mode: 0o644, Size: 4}, "etc/x 100644 text"},
		{"the root", tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, ""},
		{"a manual page", tar.Header{Name: "./usr/share/man/man1/true.1.gz", Typeflag: tar.TypeReg, Size: 4}, ""},
		{"a device", tar.Header{Name: "./dev/null", Typeflag: tar.TypeChar}, ""},
	} {
		var b bytes.Buffer
		w := cpio.NewWriter(&b)
		err := unpackEntry(w, &c.entry, strings.NewReader("text"))
		if err = errors.Join(err, w.Close()); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		r := cpio.NewReader(&b)
		h, err := r.Next()
		got := ""
		if err == nil {
			text := []byte(h.Linkname)
			if len(text) == 0 {
				text, err = io.ReadAll(r)
			}
			got = h.Name + " " + octal(h.Mode) + " " + string(text)
			if h.Uid != 0 || h.Guid != 0 {
				t.Errorf("%s belongs to %d:%d", c.name, h.Uid, h.Guid)
			}
		} else if errors.Is(err, io.EOF) {
			err = nil
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.name, got, err, c.want)
		}
	}
}

func octal(m cpio.FileMode) string {
	var b []byte
	for v := uint64(m); v > 0; v /= 8 {
		b = append([]byte{byte('0' + v%8)}, b...)
	}
	return string(b)
}

func TestDeb(t *testing.T) {
	dir := t.TempDir()
	c := &Cache{Programs: dir}
	if _, err := c.deb(); !errors.Is(err, ErrPackage) || !strings.Contains(err.Error(), "make deb") {
		t.Errorf("without one: %v", err)
	}
	for i, name := range []string{"exanet_2_amd64.deb", "exanet_1_amd64.deb", "exanet_3_arm64.deb"} {
		path := filepath.Join(dir, name)
		at := time.Unix(int64(1000+i), 0)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := c.deb(); err != nil || filepath.Base(got) != "exanet_1_amd64.deb" {
		t.Errorf("the newest is %q, %v", got, err)
	}
	c.Package = "/named.deb"
	if got, err := c.deb(); err != nil || got != c.Package {
		t.Errorf("the one that was named is %q, %v", got, err)
	}
}
