package link

import (
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// textLog keeps a log.
type textLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *textLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.WriteString(strings.ReplaceAll(string(b), `\"`, `"`))
}

func (l *textLog) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// await waits until a line of the log has all of the words.
func (l *textLog) await(t testing.TB, words []string) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		text := l.text.String()
		l.mu.Unlock()
		for line := range strings.Lines(text) {
			if contains(line, words) {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%q are not in a line of the log:\n%s", words, text)
		}
	}
}

// memory returns the bytes of the heap that are in use.
func memory() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
