package record

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// Reader reads a recording.
type Reader struct {
	in    *bufio.Reader
	h     Header
	state state
	ended bool
}

// NewReader reads the header. Its errors match ErrFormat or ErrVersion, or are errors of in.
func NewReader(in io.Reader) (*Reader, error) {
	r := &Reader{in: bufio.NewReader(in)}
	var b [headerSize]byte
	n, err := io.ReadFull(r.in, b[:])
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("recording: %w", err)
	}
	if r.h, err = DecodeHeader(b[:n]); err != nil {
		return nil, err
	}
	return r, nil
}

// Header returns the recording's header.
func (r *Reader) Header() Header { return r.h }

// Next reads the next record. At the end, after a record of kind End, it returns io.EOF. Its
// other errors match ErrFormat or ErrTruncated, or are errors of the file.
func (r *Reader) Next(to *Record) error {
	kind, err := r.in.ReadByte()
	switch {
	case errors.Is(err, io.EOF) && r.ended:
		return io.EOF
	case errors.Is(err, io.EOF):
		return ErrTruncated
	case err != nil:
		return fmt.Errorf("recording: %w", err)
	case r.ended:
		return fmt.Errorf("%w: there is data after its end", ErrFormat)
	}
	err = r.state.decodeRecord(r.in, kind, r.h.Nodes, to)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return ErrTruncated
	case err != nil && !errors.Is(err, ErrFormat):
		// An integer of more than 64 bits, or the file's error.
		return fmt.Errorf("%w: %w", ErrFormat, err)
	case err != nil:
		return err
	}
	r.ended = to.Kind == End
	return nil
}
