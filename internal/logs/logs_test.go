package logs

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func logger(o Options) (*slog.Logger, *Handler, *bytes.Buffer, *clock) {
	c := &clock{time.Unix(1000, 0)}
	o.Now = c.now
	var out bytes.Buffer
	h := New(&out, o)
	return slog.New(h), h, &out, c
}

func lines(b *bytes.Buffer) []string {
	s := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	b.Reset()
	if len(s) == 1 && s[0] == "" {
		return nil
	}
	return s
}

// refused is one place in a program that logs.
func refused(l *slog.Logger, uid uint32, reason string) {
	l.Info("attachment refused", "uid", uid, "reason", reason, "why", fmt.Sprint(time.Now()))
}

// A user who floods suppresses only its own lines.
func TestFlood(t *testing.T) {
	l, h, out, c := logger(Options{})
	for range 10000 {
		refused(l, 1000, "quota")
	}
	if n := len(lines(out)); n != burst {
		t.Errorf("a flood has %d lines, want %d", n, burst)
	}
	if h.Suppressed() != 10000-burst {
		t.Errorf("%d suppressed", h.Suppressed())
	}
	refused(l, 1001, "quota")                         // another user
	refused(l, 1000, "version")                       // another reason
	l.With("uid", 1000).Error("interrupt", "err", 1)  // another place
	l.Error("the device does not answer", "err", "x") // no user
	if n := len(lines(out)); n != 4 {
		t.Errorf("%d of 4 lines of others were written", n)
	}
	// The next line of the flood reports how many lines were suppressed.
	c.t = c.t.Add(time.Second)
	refused(l, 1000, "quota")
	refused(l, 1000, "quota")
	got := lines(out)
	if len(got) != 1 || !strings.Contains(got[0], "suppressed=9980") {
		t.Errorf("after a second: %q", got)
	}
}

// A user with many uids gets no more lines than the table allows.
func TestManyUIDs(t *testing.T) {
	l, h, out, c := logger(Options{})
	for uid := range uint32(100000) {
		refused(l, uid, "quota")
	}
	if n := len(lines(out)); n > maxKinds+burst {
		t.Errorf("%d lines, want %d at most", n, maxKinds+burst)
	}
	if n := len(h.kinds); n > maxKinds+1 {
		t.Errorf("%d kinds are remembered, at most %d may be", n, maxKinds+1)
	}
	// A line without uid and reason is still written.
	l.Error("something else")
	if got := lines(out); len(got) != 1 {
		t.Errorf("another line: %q", got)
	}
	c.t = c.t.Add(2 * idle)
	h.Sweep()
	h.Sweep()
	if got := lines(out); len(got) != 1 || !strings.Contains(got[0], "held back") || !strings.Contains(got[0], "level=WARN") {
		t.Errorf("sweeps write %q", got)
	}
	if n := len(h.kinds); n != 0 {
		t.Errorf("%d kinds remain after %v", n, 2*idle)
	}
}

func TestJournal(t *testing.T) {
	l, _, out, _ := logger(Options{Journal: true, Level: slog.LevelDebug})
	l.Debug("d")
	l.Info("i", "uid", 7)
	l.Log(t.Context(), slog.LevelInfo+2, "n")
	l.Warn("w")
	l.With("node", 1).WithGroup("g").Error("e", "uid", 8)
	want := []string{"<7>msg=d", "<6>msg=i uid=7", "<5>msg=n", "<4>msg=w", "<3>msg=e node=1 g.uid=8"}
	if got := lines(out); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("lines %q, want %q", got, want)
	}
}

// A record stays one line, whatever text of a peer it contains.
func TestNoForgedLines(t *testing.T) {
	l, _, out, _ := logger(Options{Journal: true})
	l.Info("attachment refused", "why", "x\n<0>msg=forged", "group", "\x1b[31m")
	if got := lines(out); len(got) != 1 || strings.Contains(got[0], "\x1b") {
		t.Errorf("lines %q", got)
	}
}

func TestLevel(t *testing.T) {
	var level slog.LevelVar
	l, _, out, _ := logger(Options{Level: &level})
	l.Debug("no")
	level.Set(slog.LevelDebug)
	l.Debug("yes")
	if got := lines(out); len(got) != 1 || !strings.Contains(got[0], "yes") || !strings.Contains(got[0], "time=") {
		t.Errorf("lines %q", got)
	}
}

func TestOnJournal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	for value, want := range map[string]bool{
		fmt.Sprintf("%d:%d", st.Dev, st.Ino): true, fmt.Sprintf("%d:%d", st.Dev, st.Ino+1): false, "": false, "8": false,
	} {
		if got := OnJournal(f, func(string) string { return value }); got != want {
			t.Errorf("JOURNAL_STREAM=%q: %v", value, got)
		}
	}
}
