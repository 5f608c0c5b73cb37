package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/device/accesslog"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/internal/outfile"
	"github.com/exanet/pfd/internal/spool"
	"github.com/exanet/pfd/soc/record"
)

const (
	// recordRoom and traceRoom bound the bytes that wait for a slow disk. Beyond them a
	// recording ends, and a trace loses lines. Values here are defined by this project.
	recordRoom = 64 << 20
	traceRoom  = 4 << 20
	// fileTime bounds the wait for a file's last bytes when pfd ends.
	fileTime = 2 * time.Second
)

// recording is the file of --record. The engine never waits for it.
type recording struct {
	file   *os.File
	spool  *spool.Writer
	writer *record.Writer
	log    *slog.Logger
	broken atomic.Bool
}

// startRecording records an engine into a new file. It keeps a former file as PATH.old.
func startRecording(path string, e *emu.Engine, log *slog.Logger) (*recording, error) {
	f, err := outfile.Open(path, outfile.Options{Keep: true})
	if err != nil {
		return nil, fmt.Errorf("--record: %w", err)
	}
	r := &recording{file: f, spool: spool.NewWhole(f, recordRoom), log: log}
	r.writer = record.NewWriter(r.spool, e.RecordHeader(), func(err error) {
		r.broken.Store(true)
		log.Error("the recording ends early: the part in the file can be replayed", "file", path, "err", err)
	})
	if err := r.writer.WriteHeader(f); err != nil {
		_ = r.spool.Close(0)
		_ = f.Close()
		return nil, fmt.Errorf("--record: its header: %w: give it a file with room", err)
	}
	e.Record(r.writer)
	log.Info("recording the machine's inputs", "file", path)
	return r, nil
}

// close writes the end. The engine must have ended.
func (r *recording) close() {
	err := r.writer.Close()
	if serr := r.spool.Close(fileTime); err == nil {
		err = serr
	}
	if err != nil && !r.broken.Swap(true) {
		r.log.Error("the recording has no end: the part in the file can be replayed", "err", err)
	}
	if err := r.file.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
		r.log.Error("recording", "err", err)
	}
}

// registerTrace is the output of --trace-registers.
type registerTrace struct {
	file  *os.File // nil: standard error
	spool *spool.Writer
	log   *accesslog.Log
}

// startTrace opens the output. now is the clock of the lines.
func startTrace(path string, now func() time.Duration) (*registerTrace, error) {
	t := &registerTrace{}
	out := os.Stderr
	if path != "-" {
		f, err := outfile.Open(path, outfile.Options{})
		if err != nil {
			return nil, fmt.Errorf("--trace-registers: %w", err)
		}
		t.file, out = f, f
	}
	t.spool = spool.New(out, traceRoom)
	t.log = accesslog.New(t.spool, now)
	return t, nil
}

// close flushes the trace, within fileTime.
func (t *registerTrace) close() error {
	err := t.spool.Close(fileTime)
	if n := t.spool.Stats().Lost; n > 0 {
		err = errors.Join(err, fmt.Errorf("--trace-registers: %d lines were lost", n))
	}
	if t.file != nil {
		err = errors.Join(err, t.file.Close())
	}
	return err
}
