// Package logs is pfd's log handler: one line a record, levels that the journal understands,
// and a rate limit that a hostile process cannot defeat.
//
// The limit applies to a kind of line: place in the program, reason and uid. A user who floods
// the log loses only its own lines of that kind. The handler counts the suppressed lines; the
// next line of the kind, or Sweep, reports them. The number of remembered kinds is bounded,
// too: when all are in use, further uids share one allowance.
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

// Keys of the user and the reason in a record. Values below are defined by this project.
const (
	KeyUID    = "uid"    // integer: the user whose process caused the line
	KeyReason = "reason" // one of a fixed set of words or codes, never text from a peer
)

// Limits per kind: the lines of a burst, and the lines a second after that. Values below are
// defined by this project.
const (
	burst, perSecond           = 20, 1.0
	debugBurst, debugPerSecond = 1000, 100.0

	maxKinds = 256
	// idle is how long a kind without lines is remembered.
	idle = time.Minute
)

// Options choose the format and the level of the lines.
type Options struct {
	Level   slog.Leveler // nil: info
	Journal bool         // lines start with <priority> and have no time (sd-daemon(3))
	Fields  bool         // with Journal: entries for a Journal, with each attribute as a field
	Now     func() time.Time
}

// Handler is a slog.Handler. The handlers that WithAttrs and WithGroup return share its limit.
type Handler struct {
	*shared
	inner  slog.Handler
	fields []byte // attributes of WithAttrs, in the journal's format
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
	line       bytes.Buffer // the record that is being written
	kinds      map[kind]*allowance
	suppressed uint64
	swept      uint64
	cleared    time.Time
}

// kind identifies an allowance.
type kind struct {
	pc    uintptr
	why   string
	uid   int64
	debug bool
}

// Uids of no process.
const (
	noUID  = -1
	anyUID = -2 // shared by uids that arrive when all kinds are in use
)

type allowance struct {
	tokens float64
	at     time.Time
	held   uint64
}

// New returns a handler that writes each line with one Write.
func New(w io.Writer, o Options) *Handler {
	s := &shared{out: w, journal: o.Journal, native: o.Journal && o.Fields, now: o.Now, kinds: map[kind]*allowance{}}
	if s.now == nil {
		s.now = time.Now
	}
	opts := &slog.HandlerOptions{Level: o.Level}
	if o.Journal {
		// The journal adds a time and a level itself.
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

// see keeps the uid and the reason of an attribute.
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

// Handle implements slog.Handler. Suppressing a line is no error.
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

// write writes one line. The caller must hold the lock.
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
		h.line.WriteByte('\n') // the empty line that ends an entry
	}
	_, err := h.out.Write(h.line.Bytes())
	return err
}

// priority returns a level as a priority of syslog(3).
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

// take takes one line from the allowance of a kind. held is how many lines were suppressed
// since its last line.
func (s *shared) take(k kind, now time.Time) (held uint64, ok bool) {
	size, rate := float64(burst), perSecond
	if k.debug {
		size, rate = debugBurst, debugPerSecond
	}
	a := s.kinds[k]
	if a == nil && len(s.kinds) >= maxKinds {
		// At most once a second: otherwise a user with many uids could make each line scan all
		// kinds.
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
		// The program has few places that log, so the shared kinds stay bounded.
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

// forget removes idle kinds.
func (s *shared) forget(now time.Time) {
	for k, a := range s.kinds {
		if a.held == 0 && now.Sub(a.at) >= idle {
			delete(s.kinds, k)
		}
	}
}

// Suppressed returns the number of lines suppressed since the start.
func (h *Handler) Suppressed() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.suppressed
}

// Sweep writes one line about all lines suppressed since the last Sweep, if any, and forgets
// idle kinds. The caller should call it periodically.
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
			// There is no place left to report an error of the log.
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

// OnJournal reports whether f is connected to the journal, according to the service manager's
// environment variable JOURNAL_STREAM (systemd.exec(5)).
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
