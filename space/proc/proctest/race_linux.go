package proctest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// How Race revokes the right to write to memory.
const (
	RaceProtect = "protect" // mprotect, PROT_READ
	RaceNone    = "none"    // mprotect, PROT_NONE
	RaceFile    = "file"    // another file is mapped there, private and read-only
	RaceRemap   = "remap"   // munmap, and other memory is mapped there read-only
)

// How long the memory of a Race is writable in a round at most (a random part of it), and how
// long it is read-only. Defined here.
const (
	raceWritable  = 100 * time.Microsecond
	raceForbidden = 100 * time.Microsecond
)

// Race makes the child revoke and restore the right to write to pages, for so many rounds. While
// they are read-only it compares them with their bytes at the start. Race returns in how many
// rounds a byte changed.
func (c *Child) Race(how string, va device.VA, pages, rounds int) (changed int) {
	c.t.Helper()
	return int(c.must("race", how, va, pages, uint64(rounds)))
}

type race struct {
	how    string
	b, was []byte
	fd     int // the other file
}

func (s *server) race(how string, b []byte, rounds uint64) (string, error) {
	r := &race{how: how, b: b, was: make([]byte, len(b)), fd: -1}
	if how == RaceFile {
		var err error
		if r.fd, err = unix.MemfdCreate("proctest", unix.MFD_CLOEXEC); err != nil {
			return "", err
		}
		f := os.NewFile(uintptr(r.fd), "proctest")
		defer f.Close()
		for i := range r.was {
			r.was[i] = 0xf1
		}
		if _, err := f.Write(r.was); err != nil {
			return "", err
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	changed := 0
	for range rounds {
		spin(time.Duration(random.Int64N(int64(raceWritable))))
		if err := r.forbid(); err != nil {
			return "", err
		}
		spin(raceForbidden)
		if how == RaceNone {
			if err := unix.Mprotect(b, unix.PROT_READ); err != nil {
				return "", err
			}
		}
		if !bytes.Equal(b, r.was) {
			changed++
		}
		if err := r.permit(); err != nil {
			return "", err
		}
	}
	return fmt.Sprint(changed), nil
}

// spin busy-waits: the race lasts microseconds.
func spin(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
	}
}

// forbid revokes the right to write and records the memory's bytes.
func (r *race) forbid() error {
	switch r.how {
	case RaceFile:
		return mapOver(r.b, r.fd, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_FIXED)
	case RaceRemap: // was is zero
		if err := unmap(r.b); err != nil {
			return err
		}
		return mapOver(r.b, -1, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	case RaceNone:
		if err := unix.Mprotect(r.b, unix.PROT_NONE); err != nil {
			return err
		}
	}
	if err := unix.Mprotect(r.b, unix.PROT_READ); err != nil {
		return err
	}
	copy(r.was, r.b)
	if r.how == RaceNone {
		return unix.Mprotect(r.b, unix.PROT_NONE)
	}
	return nil
}

// permit makes the memory writable and all of it present.
func (r *race) permit() error {
	if r.how == RaceProtect || r.how == RaceNone {
		return unix.Mprotect(r.b, unix.PROT_READ|unix.PROT_WRITE)
	}
	err := mapOver(r.b, -1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED)
	if err != nil {
		return err
	}
	for i := 0; i < len(r.b); i += device.PageSize {
		r.b[i] = 1
	}
	return nil
}
