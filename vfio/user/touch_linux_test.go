package user

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTouchAside: touchAside uses the file and not its mapping, since an access that sleeps in a
// mapping keeps this process from mapping memory. It falls back to the mapping if the file cannot
// be used.
func TestTouchAside(t *testing.T) {
	for _, x := range []struct {
		name   string
		flags  uint32
		prep   func(t *testing.T, s *space, fd int) // before it is mapped
		mapped func(t *testing.T, fd int)           // after
		file   bool                                 // there is a descriptor
		reads  bool                                 // without the mapping
		writes bool                                 // without the mapping
	}{
		{name: "plain", flags: both, file: true, reads: true, writes: true},
		{name: "read only", flags: DMARead, file: true, reads: true},
		{name: "appended to", flags: both, file: true, reads: true, writes: true, mapped: func(t *testing.T, fd int) {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND)
			ok(t, err)
		}},
		{name: "sealed", flags: both, file: true, reads: true, mapped: func(t *testing.T, fd int) {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE)
			ok(t, err)
		}},
		{name: "one file too many", flags: both, prep: func(t *testing.T, s *space, fd int) { s.maxKept = 0 }},
	} {
		t.Run(x.name, func(t *testing.T) {
			before := openFDs(t)
			s := newSpace(10)
			s.maxKept = 1
			fd := memfd(t, 8192, 0)
			if x.prep != nil {
				x.prep(t, s, fd)
			}
			ok(t, s.add(DMAMap{32, x.flags, 4096, 0x10000, 4096}, fd))
			if x.mapped != nil {
				x.mapped(t, fd)
			}
			a := s.list[0].area
			if kept := a.file >= 0; kept != x.file {
				t.Errorf("a descriptor is kept: %v, want %v", kept, x.file)
			}
			p := []byte("somewhere")
			do := func(write bool) error { return s.accessBy(touchAside, 0x10020, p, write, nil, nil) }
			if a.mapped.Load() == x.file {
				t.Errorf("mapped: %v, with a descriptor: %v", x.file, x.file)
			}
			if x.name == "sealed" {
				if err := do(true); !errors.Is(err, ErrLost) || !errors.Is(err, unix.EPERM) {
					t.Errorf("a file that was sealed against writing: %v", err)
				}
			} else if x.flags&DMAWrite != 0 { // by whichever way
				ok(t, do(true))
				q := make([]byte, len(p))
				_, err := unix.Pread(fd, q, 4096+0x20)
				if ok(t, err); !bytes.Equal(p, q) {
					t.Errorf("the file has %q, want %q", q, p)
				}
			}
			ok(t, do(false))
			var st unix.Stat_t
			if ok(t, unix.Fstat(fd, &st)); st.Size != 8192 {
				t.Errorf("the file has become %d bytes long", st.Size)
			}

			if b, err := a.at(0, 8192); err == nil {
				ok(t, unix.Mprotect(b, unix.PROT_NONE))
			} else if x.name != "sealed" {
				t.Error(err)
			}
			for _, c := range []struct{ write, done bool }{{false, x.reads}, {true, x.writes}} {
				if err := do(c.write); c.done != (err == nil) {
					t.Errorf("write %v without the mapping: %v, want it done: %v", c.write, err, c.done)
				}
			}

			ok(t, unix.Ftruncate(fd, 4096))
			for _, write := range []bool{false, x.flags&DMAWrite != 0} {
				if err := do(write); !errors.Is(err, ErrLost) {
					t.Errorf("a file that was cut, write %v: %v", write, err)
				}
			}
			if ok(t, unix.Fstat(fd, &st)); st.Size != 4096 {
				t.Errorf("the file has become %d bytes long", st.Size)
			}
			s.clear()
			if n := fdsAfter(t, before+1); n != before+1 { // fd
				t.Errorf("%d descriptors before, %d after", before+1, n)
			}
		})
	}
}
