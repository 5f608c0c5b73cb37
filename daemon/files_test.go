package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/outfile"
	"github.com/exanet/pfd/internal/sim"
	"github.com/exanet/pfd/rdma"
)

// selfWrite writes 64 KiB from an untouched buffer of this process to another.
func selfWrite(t *testing.T, socket string) {
	t.Helper()
	ctx := t.Context()
	e, err := rdma.Attach(ctx, rdma.Options{Socket: socket, Group: "files"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	mem, err := unix.Mmap(-1, 0, 2*targetSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	copy(mem, pattern())
	remote, err := e.Export(mem[targetSize:])
	if err != nil {
		t.Fatal(err)
	}
	tr, err := e.Write(ctx, rdma.WriteRequest{Src: mem[:targetSize], Dst: remote})
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(mem[targetSize:], pattern()) {
		t.Error("other bytes came")
	}
}

// The recording of a pfd replays.
func TestRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.rec")
	t.Run("run", func(t *testing.T) {
		d, client, _ := startEngine(t, func(c *Config) { c.Record = path })
		selfWrite(t, client.Socket())
		if s, err := client.Status(t.Context()); err != nil || s.Record != path {
			t.Errorf("status %+v, %v", s, err)
		}
		if !strings.Contains(metrics(t, d), "exanet_recording 1\n") {
			t.Error("the metrics do not say that it records")
		}
		// Another pfd leaves it alone.
		_, err := Emulated(Config{Nodes: 1, Record: path})
		if !errors.Is(err, outfile.ErrInUse) {
			t.Errorf("another pfd records there: %v", err)
		}
	})
	replay := func(path string) sim.Replayed {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r, err := sim.Replay(f)
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		return r
	}
	if r := replay(path); r.Records == 0 || r.Checked != r.Records || r.Frames == 0 || r.Header.Nodes != 2 {
		t.Errorf("%+v", r)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	// The next one keeps it.
	t.Run("again", func(t *testing.T) {
		startEngine(t, func(c *Config) { c.Record, c.Nodes = path, 3 })
	})
	if r := replay(path); r.Header.Nodes != 3 || r.Frames != 0 {
		t.Errorf("the new one: %+v", r)
	}
	if r := replay(path + ".old"); r.Header.Nodes != 2 {
		t.Errorf("the old one: %+v", r)
	}
}

// pfd does not start a recording whose header cannot be written.
func TestRecordNoRoom(t *testing.T) {
	if _, err := Emulated(Config{Nodes: 1, Record: "/dev/full"}); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "--record") {
		t.Errorf("a recording onto a full disk begins: %v", err)
	}
}

// A file that cannot grow ends the recording and nothing else, and pfd logs it.
func TestRecordBroken(t *testing.T) {
	in, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	var out syncBuffer
	d, client, _ := startEngine(t, func(c *Config) {
		c.Record, c.Log = fmt.Sprintf("/proc/self/fd/%d", to.Fd()), slog.New(slog.NewTextHandler(&out, nil))
	})
	if _, err := io.ReadFull(in, make([]byte, 8)); err != nil {
		t.Fatalf("no header at the start: %v", err)
	}
	in.Close()
	var text string
	for deadline := time.Now().Add(patience); !strings.Contains(text, "exanet_recording 0\n"); {
		selfWrite(t, client.Socket())
		if text = metrics(t, d); time.Now().After(deadline) {
			t.Fatal("a file that takes no more is not noticed")
		}
	}
	selfWrite(t, client.Socket())
	if s := out.String(); strings.Count(s, "the recording ends early") != 1 || !strings.Contains(s, "broken pipe") {
		t.Errorf("the log says %q", s)
	}
}

// Each access of the driver is one line.
func TestTrace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	t.Run("run", func(t *testing.T) {
		_, client, _ := startEngine(t, func(c *Config) { c.Trace = path })
		selfWrite(t, client.Socket())
	})
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{" node 0 r32 pl+0x00000 ID = 0x", " node 1 w32 pl+0x00018 CTRL = 0x1: enable\n", " CB_FSR[0] = ", "RXFIFO", ": fault"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the trace misses %q", want)
		}
	}
	if strings.Contains(string(text), "BAD ACCESS") {
		t.Error("the driver makes bad accesses")
	}
}

func TestRecordNeedsEmu(t *testing.T) {
	c := Default()
	c.Socket, c.Device, c.Record = "/tmp/x", DeviceVFIOUser+"/tmp/y", "/tmp/z"
	if err := c.Check(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "--record") {
		t.Errorf("%v", err)
	}
}

// A file that other users may read becomes private.
func TestOutputFileIsPrivate(t *testing.T) {
	for _, keep := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := outfile.Open(path, outfile.Options{Keep: keep})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	}
}
