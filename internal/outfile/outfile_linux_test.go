package outfile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// In a directory that others can write, a program neither truncates nor writes other users'
// files or the targets of their links.
func TestFileOfOthers(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, "own")
	if err := os.WriteFile(own, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	link, second, theirs := filepath.Join(dir, "link"), filepath.Join(dir, "second"), filepath.Join(dir, "theirs")
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	cases := map[string]error{link: unix.ELOOP, second: ErrOfOthers, own: ErrOfOthers}
	if err := os.Link(own, second); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := errors.Join(os.WriteFile(theirs, nil, 0o666), os.Chown(theirs, 3100, 3100)); err != nil {
			t.Fatal(err)
		}
		cases[theirs] = ErrOfOthers
	}
	for path, want := range cases {
		for _, o := range []Options{{}, {Keep: true}, {Mode: 0o644}} {
			f, err := Open(path, o)
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", path, err, want)
			}
			if f != nil {
				f.Close()
			}
		}
	}
	if b, err := os.ReadFile(own); err != nil || string(b) != "x" {
		t.Errorf("the file has %q, %v", b, err)
	}
}

// The name of a descriptor is a link to a file that is already open.
func TestOpenDescriptor(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	f, err := Open(filepath.Join("/proc/self/fd", strconv.Itoa(int(w.Fd()))), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(b[:]); err != nil || b[0] != 'x' {
		t.Errorf("%q, %v", b, err)
	}
}

// A file that another program is writing is refused. The result is readable by all users.
func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, text := range []string{"longer", "x"} {
		if err := Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != text {
			t.Errorf("%q, %v, want %q", b, err, text)
		}
	}
	f, err := Open(path, Options{Mode: 0o644})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Write(path, nil); !errors.Is(err, ErrInUse) {
		t.Errorf("a file that is being written: %v", err)
	}
}

// Waiting for the reader of a pipe can be interrupted; another user's pipe is refused.
func TestAwait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Await(over, path, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	go func() {
		if r, err := os.Open(path); err == nil { // waits for the writer
			r.Close()
		}
	}()
	f, err := Await(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chown(path, 3100, 3100); err != nil {
		t.Fatal(err)
	}
	if _, err := Await(t.Context(), path, Options{}); !errors.Is(err, ErrOfOthers) {
		t.Errorf("another user's pipe: %v, want %v", err, ErrOfOthers)
	}
}
