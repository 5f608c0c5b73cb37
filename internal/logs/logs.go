// Package logs is pfd's log handler: one line a record, levels that the journal
// understands, and a limit that a hostile process cannot defeat.
//
// The limit counts by place in the program, reason and uid: who floods the log
// silences its own lines of that one kind, and nobody else's. What is held back
// is counted, and told with the next line of the kind or by Sweep. The number of
// kinds that are remembered is bounded, too: uids that come when all are taken
// share one allowance.
package logs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Keys that name who and why in a record: package-wide conventions (ours).
const (
	KeyUID    = "uid"    // an integer: the user whose process caused the line
	KeyReason = "reason" // one of a few words or codes of ours, never a peer's text
)

// Limits (ours): how many lines of a kind come at once, and how many a second
// after that.
const (
	burst, perSecond           = 20, 1.0
	debugBurst, debugPerSecond = 1000, 100.0

	maxKinds = 256
	// idle is how long a kind is remembered that says nothing more.
	idle = time.Minute
)

// Options choose how lines look and how many there are.
type Options struct {
	Level   slog.Leveler // nil: info
	Journal bool         // lines start with <priority> and have no time (sd-daemon(3))
	Fields  bool         // with Journal: entries for Dial, with each attribute as a field
	Now     func() time.Time
}

// Handler is a slog.Handler. Handlers made by WithAttrs and WithGroup share its
// limit.
type Handler struct {
	*shared
	inner  slog.Handler
	fields []byte // of WithAttrs, for the journal
	uid    int64
	why    string
	group  bool
}

type shared struct {
	out     io.Writer
	journal bool
	native  bool
	now     func() time.Time

	mu         sync.Mutex
	line       bytes.Buffer // of the record that is being written
	kinds      map[kind]*allowance
	suppressed uint64
	swept      uint64
	cleared    time.Time
}

// kind is what has an allowance of its own.
type kind struct {
	pc    uintptr
	why   string
	uid   int64
	debug bool
}

// Uids that no process has.
const (
	noUID  = -1
	anyUID = -2 // of those that came when all kinds were taken
)

type allowance struct {
	tokens float64
	at     time.Time
	held   uint64
}

// New makes a handler that writes a line with each Write.
func New(w io.Writer, o Options) *Handler {
	s := &shared{out: w, journal: o.Journal, native: o.Journal && o.Fields, now: o.Now, kinds: map[kind]*allowance{}}
	if s.now == nil {
		s.now = time.Now
	}
	opts := &slog.HandlerOptions{Level: o.Level}
	if o.Journal {
		// The journal has a time and a level of its own.
		opts.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
				return slog.Attr{}
			}
			return a
		}
	}
	return &Handler{shared: s, inner: slog.NewTextHandler(&s.line, opts), uid: noUID}
}

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, l slog.Level) bool { return h.inner.Enabled(ctx, l) }

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	for _, a := range attrs {
		c.see(a)
		if h.native {
			c.fields = appendField(slices.Clip(c.fields), a)
		}
	}
	c.inner = h.inner.WithAttrs(attrs)
	return &c
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	c := *h
	c.inner, c.group = h.inner.WithGroup(name), true
	return &c
}

// see notes who and why.
func (h *Handler) see(a slog.Attr) {
	if h.group {
		return
	}
	switch a.Key {
	case KeyUID:
		switch v := a.Value.Resolve(); v.Kind() {
		case slog.KindInt64:
			h.uid = v.Int64()
		case slog.KindUint64:
			h.uid = int64(v.Uint64())
		}
	case KeyReason:
		h.why = a.Value.String()
	}
}

// Handle implements slog.Handler. A line that is held back is no error.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	k := *h
	r.Attrs(func(a slog.Attr) bool { k.see(a); return true })
	now := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	held, ok := h.take(kind{pc: r.PC, why: k.why, uid: k.uid, debug: r.Level < slog.LevelInfo}, now)
	if !ok {
		h.suppressed++
		return nil
	}
	if held > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Uint64("suppressed", held))
	}
	return h.write(ctx, h.inner, r)
}

// write writes one line. The lock is held.
func (h *Handler) write(ctx context.Context, inner slog.Handler, r slog.Record) error {
	h.line.Reset()
	switch {
	case h.native:
		b := fmt.Appendf(h.line.AvailableBuffer(), "PRIORITY=%d\nSYSLOG_IDENTIFIER=pfd\n%s", priority(r.Level), h.fields)
		r.Attrs(func(a slog.Attr) bool { b = appendField(b, a); return true })
		h.line.Write(append(b, "MESSAGE="...))
	case h.journal:
		fmt.Fprintf(&h.line, "<%d>", priority(r.Level))
	}
	if err := inner.Handle(ctx, r); err != nil {
		return err
	}
	if h.native {
		h.line.WriteByte('\n') // an empty line ends an entry
	}
	_, err := h.out.Write(h.line.Bytes())
	return err
}

// priority gives a level as syslog(3) has it.
func priority(l slog.Level) int {
	switch {
	case l >= slog.LevelError:
		return 3
	case l >= slog.LevelWarn:
		return 4
	case l > slog.LevelInfo:
		return 5
	case l == slog.LevelInfo:
		return 6
	}
	return 7
}

// take takes one line from a kind's allowance; held is how many were held back
// since its last line.
func (s *shared) take(k kind, now time.Time) (held uint64, ok bool) {
	size, rate := float64(burst), perSecond
	if k.debug {
		size, rate = debugBurst, debugPerSecond
	}
	a := s.kinds[k]
	if a == nil && len(s.kinds) >= maxKinds {
		// Looked at once a second: who comes with many uids pays no more than that.
		if now.Sub(s.cleared) >= time.Second {
			s.cleared = now
			s.forget(now)
		}
		if len(s.kinds) >= maxKinds {
			k.uid, k.why = anyUID, ""
			a = s.kinds[k]
		}
	}
	if a == nil {
		// Places in the program are few: the shared kinds stay bounded.
		a = &allowance{tokens: size, at: now}
		s.kinds[k] = a
	}
	a.tokens = min(size, a.tokens+rate*now.Sub(a.at).Seconds())
	a.at = now
	if a.tokens < 1 {
		a.held++
		return 0, false
	}
	a.tokens--
	held, a.held = a.held, 0
	return held, true
}

// forget drops kinds that have been quiet.
func (s *shared) forget(now time.Time) {
	for k, a := range s.kinds {
		if a.held == 0 && now.Sub(a.at) >= idle {
			delete(s.kinds, k)
		}
	}
}

// Suppressed gives how many lines were held back since the start.
func (h *Handler) Suppressed() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.suppressed
}

// Sweep writes one line about all that was held back since the last one, if
// there was anything, and forgets kinds that are quiet. Call it now and then.
func (h *Handler) Sweep() {
	now := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.suppressed - h.swept; n > 0 {
		h.swept = h.suppressed
		kinds := 0
		for _, a := range h.kinds {
			if a.held > 0 {
				kinds++
			}
		}
		r := slog.NewRecord(now, slog.LevelWarn, "log lines held back", 0)
		r.AddAttrs(slog.Uint64("lines", n), slog.Int("kinds", kinds))
		if h.inner.Enabled(context.Background(), r.Level) {
			// Where the line cannot be written nobody can be told.
			_ = h.write(context.Background(), h.inner, r)
		}
	}
	for _, a := range h.kinds {
		if now.Sub(a.at) >= idle {
			a.held = 0
		}
	}
	h.forget(now)
}

// OnJournal tells whether f leads to the journal, as the service manager's
// environment variable JOURNAL_STREAM says (systemd.exec(5)).
func OnJournal(f *os.File, getenv func(string) string) bool {
	dev, ino, ok := strings.Cut(getenv("JOURNAL_STREAM"), ":")
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && dev == strconv.FormatUint(uint64(st.Dev), 10) && ino == strconv.FormatUint(st.Ino, 10)
}
