package user

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/leak"
)

// TestStreamsLeaveNothing: clients that send any bytes, one after the other, leak nothing in the
// server: no descriptor, no goroutine, no memory.
func TestStreamsLeaveNothing(t *testing.T) {
	fd := memfd(t, 1<<16, 0)
	s, _ := newServer(t, func(c *Config) { c.Timeout = 50 * time.Millisecond })
	agreed := append(raw(1, CmdVersion, 0, hello("{}")), raw(2, CmdRegionWrite, 0, le(uint64(4), 7, 2, le(uint16(6))))...)
	var streams [][]byte
	for i, c := range refusals {
		streams = append(streams, append(append([]byte(nil), agreed...), raw(uint16(i), c.cmd, i%2*flagNoReply, c.payload)...))
	}
	// Half a message, nonsense, and state that lasts until the client ends.
	streams = append(streams, nil, agreed[:9], []byte("GET / HTTP/1.1\r\n\r\n                "),
		append(append([]byte(nil), agreed...), raw(2, CmdDMAMap, 0, le(32, 3, uint64(0), uint64(0x10000), uint64(4096)))...),
		append(append([]byte(nil), agreed...), raw(2, CmdReset, 0, nil)...))
	leak.Rounds(t, 3*len(streams), func(i int) {
		r := rawConnect(t, s)
		over := make(chan struct{})
		go func() { // read whatever it says
			defer close(over)
			_, _ = io.Copy(io.Discard, fdReader(r.fd))
		}()
		if stream := streams[i%len(streams)]; len(stream) > 0 {
			_ = r.sock.send(stream, []int{fd}) // it may hang up before the end
		}
		_ = unix.Shutdown(r.fd, unix.SHUT_WR)
		if err := <-r.ended; err == nil {
			t.Error("no reason for the end")
		}
		<-over
		r.sock.close()
	})
}

// levels is a logger's handler that sends the level of each end of a connection to a channel.
type levels struct {
	slog.Handler
	told chan slog.Record
}

func (l levels) Handle(_ context.Context, r slog.Record) error {
	l.told <- r
	return nil
}

// end waits for the end of a connection and returns the level at which it was logged.
func (l levels) end() slog.Level {
	for {
		if r := <-l.told; r.Message == "vfio-user: connection ended" {
			return r.Level
		}
	}
}

// TestDescriptorsLost: a server that is out of descriptors logs a warning that it closed a
// client's connection for that reason.
func TestDescriptorsLost(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	log := levels{slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}), make(chan slog.Record, 16)}
	s, _ := newServer(t, func(c *Config) { c.Log = slog.New(log) })
	path := filepath.Join(t.TempDir(), "dev.sock")
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, path) }()
	c, err := Redial(ctx, path, Options{}, func(*Client) error { return nil }) // it listens
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	log.end()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	client := &rawSession{t, nil, newSocket(fd), newInbox(2 << 20)}
	client.agree("{}")
	file := memfd(t, 4096, unix.F_SEAL_SHRINK)
	none := limit
	none.Cur = 0 // open descriptors stay open
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	client.send(raw(2, CmdDMAMap, 0, le(32, 1, uint64(0), uint64(0x10000), uint64(4096))), file)
	_, answered := client.receive()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || answered {
		t.Fatal(err, "or a descriptor without room for it was received")
	}
	if level := log.end(); level != slog.LevelWarn {
		t.Errorf("at level %v", level)
	}
	client.sock.close()
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestWithoutProc: a server that cannot identify eventfds returns an error before it serves a
// client.
func TestWithoutProc(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root is needed: /proc is hidden by a mount")
	}
	refused := make(chan error)
	go func() {
		defer close(refused)
		runtime.LockOSThread() // and never unlocked: the thread ends with its mounts
		err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("none", "/proc", "tmpfs", 0, ""))
		if err != nil {
			t.Error(err)
			return
		}
		d := &testDevice{}
		_, err = New(testConfig(d), d)
		refused <- err
	}()
	if err := <-refused; !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "is /proc mounted?") {
		t.Errorf("without /proc: %v", err)
	}
}
