// Package plaintext normalizes the text of a file: editors and other programs add byte order
// marks and other line ends.
package plaintext

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"
)

// ErrEncoding reports that a file is not UTF-8 text.
var ErrEncoding = errors.New("not a text in UTF-8")

// mark is the byte order mark in UTF-8.
const mark = "\xef\xbb\xbf"

// wide are the byte order marks of other encodings (Unicode 15.0, 23.8), longer ones first.
var wide = []struct{ mark, name string }{
	{"\xff\xfe\x00\x00", "UTF-32"}, {"\x00\x00\xfe\xff", "UTF-32"},
	{"\xff\xfe", "UTF-16"}, {"\xfe\xff", "UTF-16"},
}

// Text returns the text of a file without a byte order mark, and with line feeds as line ends.
// Errors match ErrEncoding and name the line.
func Text(b []byte) ([]byte, error) {
	for _, w := range wide {
		if bytes.HasPrefix(b, []byte(w.mark)) {
			return nil, fmt.Errorf("%w: it is %s: save it as UTF-8 (iconv -f %s -t UTF-8)", ErrEncoding, w.name, w.name)
		}
	}
	b = bytes.TrimPrefix(b, []byte(mark))
	b = bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n"))
	if !bytes.Contains(b, []byte("\n")) {
		b = bytes.ReplaceAll(b, []byte("\r"), []byte("\n"))
	}
	line := 1
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		switch {
		case r == '\n':
			line++
		case r == utf8.RuneError && n == 1:
			return nil, fmt.Errorf("line %d: %w: byte %#02x: save it as UTF-8", line, ErrEncoding, b[i])
		case r == 0:
			return nil, fmt.Errorf("line %d: %w: a zero byte: is it a binary file, or UTF-16 without a byte order mark?", line, ErrEncoding)
		}
		i += n
	}
	return b, nil
}
