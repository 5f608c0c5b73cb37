package main

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/emu/serve"
)

// lines is a log that may be read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A capture whose file cannot be written ends at once with an error. A reader that does not
// read does not delay the end of the server.
func TestServeCaptureFails(t *testing.T) {
	m, err := serve.New(serve.Config{Nodes: 1, VABits: 48, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var said lines
	log := slog.New(slog.NewTextHandler(&said, nil))

	end, err := record(t.Context(), m.Engine(), "/dev/full", log)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); !strings.Contains(said.String(), "no space left"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a full disk is not said")
		}
	}
	if err := end(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v, want no space", err)
	}

	fifo := filepath.Join(t.TempDir(), "f")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(fifo, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 4096))
	}
	if end, err = record(t.Context(), m.Engine(), fifo, log); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- end() }()
	select {
	case err := <-over:
		if err == nil {
			t.Error("packets were not written, and nothing is said")
		}
	case <-time.After(patience):
		t.Error("the end waits for a reader that does not read")
	}
}
