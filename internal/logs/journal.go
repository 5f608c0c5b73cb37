package logs

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
)

// JournalSocket is the socket where the journal receives entries (systemd-journald.service(8)).
const JournalSocket = "/run/systemd/journal/socket"

// Journal sends entries to the journal by its native protocol
// (systemd.io/JOURNAL_NATIVE_PROTOCOL), one datagram each. It is not safe for concurrent use.
type Journal struct {
	path string
	conn net.Conn
}

// Dial connects to the journal's socket.
func Dial(path string) (*Journal, error) {
	conn, err := net.Dial("unixgram", path)
	if err != nil {
		return nil, fmt.Errorf("the journal: %w", err)
	}
	return &Journal{path, conn}, nil
}

// Write sends whole entries in the format of a Handler with Fields: an empty line ends each. It
// reconnects if the journal was restarted.
func (j *Journal) Write(p []byte) (int, error) {
	for entry := range bytes.SplitSeq(bytes.TrimSuffix(p, []byte("\n\n")), []byte("\n\n")) {
		entry = append(bytes.Clone(entry), '\n')
		if _, err := j.conn.Write(entry); err == nil {
			continue
		}
		again, err := Dial(j.path)
		if err != nil {
			return 0, err
		}
		_ = j.conn.Close() // the connection is dead; the error says nothing more
		j.conn = again.conn
		if _, err := j.conn.Write(entry); err != nil {
			return 0, fmt.Errorf("the journal: %w", err)
		}
	}
	return len(p), nil
}

// Close closes the socket.
func (j *Journal) Close() error { return j.conn.Close() }

// appendField appends an attribute as a field, NAME=value. It quotes a value of several lines,
// so that text from a peer cannot forge a field. Groups appear only in the message.
func appendField(b []byte, a slog.Attr) []byte {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup || a.Key == "" {
		return b
	}
	// Letters, digits and underscores; no leading underscore or digit; at most 64
	// (JOURNAL_NATIVE_PROTOCOL).
	name := strings.TrimLeft(strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		case 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return r
		}
		return '_'
	}, a.Key), "_0123456789")
	value := v.String()
	if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' }) {
		value = strconv.Quote(value)
	}
	if name == "" || len(name) > 64 {
		return b
	}
	return append(append(append(append(b, name...), '='), value...), '\n')
}
