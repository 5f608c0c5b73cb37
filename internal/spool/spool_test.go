package spool

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"syscall"
)

// patience is reached only by a hang.
const patience = 2 * time.Minute

// gate is a file that accepts data while it is open.
type gate struct {
	mu  sync.Mutex
	got bytes.Buffer
	let chan error
}

func (g *gate) Write(p []byte) (int, error) {
	if err := <-g.let; err != nil {
		return 0, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.got.Write(p)
}

func TestOrder(t *testing.T) {
	var out bytes.Buffer
	w := New(&out, 1<<20)
	var want strings.Builder
	for i := range 1000 {
		s := strings.Repeat(string(rune('a'+i%26)), i%40) + "\n"
		want.WriteString(s)
		if _, err := w.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(patience); err != nil {
		t.Fatal(err)
	}
	if out.String() != want.String() {
		t.Error("wrong bytes were written")
	}
	if _, err := w.Write([]byte("x")); !errors.Is(err, ErrClosed) {
		t.Errorf("Write after Close: %v", err)
	}
	if err := w.Close(patience); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

// A file that accepts nothing loses lines but does not block.
func TestSlowFile(t *testing.T) {
	g := &gate{let: make(chan error)}
	w := New(g, 100)
	line := bytes.Repeat([]byte("x"), 60)
	taken := 0
	for range 10 {
		if _, err := w.Write(line); err == nil {
			taken++
		} else if !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
	}
	// One write may be in progress and one buffered.
	if s := w.Stats(); taken < 1 || taken > 2 || s.Lost != uint64(10-taken) || s.Failed != 0 {
		t.Errorf("%d accepted, %+v", taken, s)
	}
	if err := w.Close(time.Millisecond); !errors.Is(err, ErrFull) {
		t.Errorf("Close of a stuck file: %v", err)
	}
	close(g.let)
	if err := w.Close(patience); err != nil {
		t.Error(err)
	}
	if g.got.Len() != 60*taken {
		t.Errorf("%d bytes were written, want %d", g.got.Len(), 60*taken)
	}
}

// A full disk is reported and counted; writing resumes when there is room again.
func TestDiskFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	w := New(full, 1000)
	if _, err := w.Write([]byte("lost\n")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(patience); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Close: %v, want no space", err)
	}
	if s := w.Stats(); s.Lost != 1 || s.Failed != 1 {
		t.Errorf("%+v", s)
	}

	g := &gate{let: make(chan error)}
	w = New(g, 1000)
	for i, answer := range []error{syscall.ENOSPC, nil} {
		if _, err := w.Write([]byte("line\n")); err != nil {
			t.Fatal(i, err)
		}
		g.let <- answer
		for s := w.Stats(); s.Failed != 1 || s.Err != answer && !errors.Is(s.Err, answer); s = w.Stats() {
			time.Sleep(time.Millisecond)
		}
	}
	if err := w.Close(patience); err != nil {
		t.Errorf("Close after the disk had room again: %v", err)
	}
}

// shortly is a disk that is full for one write.
type shortly struct {
	begun, goOn chan struct{}
	writes      int
	got         []byte
}

func (f *shortly) Write(p []byte) (int, error) {
	if f.writes++; f.writes == 1 {
		close(f.begun)
		<-f.goOn
		return 0, syscall.ENOSPC
	}
	f.got = append(f.got, p...)
	return len(p), nil
}

// Data behind a write that fails is not written either, even if the disk has room again: it would
// follow a hole.
func TestWholeHasNoHole(t *testing.T) {
	f := &shortly{begun: make(chan struct{}), goOn: make(chan struct{})}
	w := NewWhole(f, 1<<20)
	if _, err := w.Write([]byte("first")); err != nil {
		t.Fatal(err)
	}
	<-f.begun
	if _, err := w.Write([]byte("second")); err != nil {
		t.Fatal(err)
	}
	close(f.goOn)
	if err := w.Close(time.Minute); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Close: %v", err)
	}
	if len(f.got) > 0 {
		t.Errorf("%q stands behind the hole", f.got)
	}
}
