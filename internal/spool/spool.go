// Package spool writes files in a separate goroutine, so that a full disk or a slow reader
// never blocks the writing program. Data beyond the limit is dropped, counted, and reported.
package spool

import (
	"errors"
	"io"
	"sync"
	"time"
)

// ErrFull reports that a Write was dropped because the file accepts data too slowly.
var ErrFull = errors.New("the file is written too slowly")

// ErrClosed reports that a Write after Close was dropped.
var ErrClosed = errors.New("already closed")

// Writer is an io.Writer that never blocks. It is safe for concurrent use; the data of one
// Write stays together.
type Writer struct {
	to    io.Writer
	limit int
	whole bool // drop everything after the first loss

	mu     sync.Mutex
	wake   *sync.Cond
	buf    []byte
	writes int // in buf
	spare  []byte
	busy   bool
	closed bool
	stats  Stats
	done   chan struct{}
}

// Stats count the writes.
type Stats struct {
	Lost   uint64 // writes that did not reach the file completely
	Failed uint64 // of these, because of an error of the file
	Err    error  // the file's last error; nil once it accepts bytes again
}

// New returns a Writer that buffers at most limit bytes. Close ends its goroutine.
func New(to io.Writer, limit int) *Writer { return start(&Writer{to: to, limit: limit}) }

// NewWhole is like New, for a file that must have no hole: the Writer drops everything after
// the first loss.
func NewWhole(to io.Writer, limit int) *Writer {
	return start(&Writer{to: to, limit: limit, whole: true})
}

func start(w *Writer) *Writer {
	w.done = make(chan struct{})
	w.wake = sync.NewCond(&w.mu)
	go w.run()
	return w
}

// Write buffers p, or drops all of it and returns an error.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		w.stats.Lost++
		return 0, ErrClosed
	case len(w.buf)+len(p) > w.limit, w.whole && w.stats.Lost > 0:
		w.stats.Lost++
		if w.stats.Err != nil {
			return 0, w.stats.Err
		}
		return 0, ErrFull
	}
	w.buf = append(w.buf, p...)
	w.writes++
	if !w.busy {
		w.wake.Signal()
	}
	return len(p), nil
}

// Stats returns the counters.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

func (w *Writer) run() {
	defer close(w.done)
	w.mu.Lock()
	defer w.mu.Unlock()
	var err error
	for {
		for len(w.buf) == 0 {
			if w.closed {
				return
			}
			w.wake.Wait()
		}
		b, n := w.buf, w.writes
		w.buf, w.writes, w.busy = w.spare[:0], 0, true
		w.mu.Unlock()
		if !w.whole || err == nil {
			_, err = w.to.Write(b)
		}
		w.mu.Lock()
		w.spare, w.busy, w.stats.Err = b, false, err
		if err != nil {
			// Count all lines: how many of them were written is not known.
			w.stats.Lost += uint64(n)
			w.stats.Failed += uint64(n)
		}
	}
}

// Close rejects further writes and waits at most wait until the buffered ones are written. It
// does not close the file. It returns the file's last error, or ErrFull if wait was too short.
// It may be called again.
func (w *Writer) Close(wait time.Duration) error {
	w.mu.Lock()
	w.closed = true
	w.wake.Signal()
	w.mu.Unlock()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-w.done:
		return w.Stats().Err
	case <-t.C:
		return ErrFull
	}
}
