package discard_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/discard"
	"github.com/exanet/pfd/internal/memfd"
)

func TestMain(m *testing.M) {
	if discard.IsServer(os.Args) {
		if discard.Serve() != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// newFile returns a file whose three pages are present.
func newFile(t *testing.T) int {
	t.Helper()
	fd, err := memfd.New("discard", 3<<12, 0, 0)
	if err == nil {
		t.Cleanup(func() { unix.Close(fd) })
		err = unix.Fallocate(fd, 0, 0, 3<<12)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func blocks(t *testing.T, fd int) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks
}

func TestPunch(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := discard.Start(exe)
	if err != nil {
		t.Fatal(err)
	}
	fd := newFile(t)
	for range 2 {
		if err := p.Punch(fd, 1<<12, 1<<12); err != nil {
			t.Fatal(err)
		}
		if n := blocks(t, fd); n != 2*8 {
			t.Fatalf("%d blocks", n)
		}
	}
	if err := p.Punch(fd, -1, 1<<12); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a range that cannot be: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Punch(fd, 0, 1<<12); !errors.Is(err, discard.ErrEnded) {
		t.Errorf("after the end: %v", err)
	}
}
