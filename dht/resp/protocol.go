package resp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Limits of a command, in arguments and in bytes of one argument and of all. Redis has larger ones; a
// table's keys and values are far below these, so that one that is too long for the table can be
// answered, and the connection goes on.
const (
	MaxArguments = 4096
	MaxArgument  = 64 << 10
	MaxCommand   = 1 << 20
)

// A ProtocolError says that what a client sent is no command. The connection cannot go on, since nobody
// knows where the next command begins.
type ProtocolError struct{ Text string }

func (e *ProtocolError) Error() string { return "Protocol error: " + e.Text }

func protocolError(format string, a ...any) error {
	return &ProtocolError{fmt.Sprintf(format, a...)}
}

// ReadCommand reads one command of RESP2: an array of bulk strings, or one line of words (an inline
// command). An empty command has no arguments. It returns io.EOF at the end of the connection between
// two commands, io.ErrUnexpectedEOF at its end within one, and a *ProtocolError for other bytes than a command.
func ReadCommand(r *bufio.Reader) ([][]byte, error) {
	first, err := r.Peek(1)
	if err != nil {
		return nil, err
	}
	line, err := readLine(r)
	if err != nil {
		return nil, err
	}
	if first[0] != '*' {
		if bytes.ContainsAny(line, "\"'") {
			return nil, protocolError("quotes in an inline command: send an array of bulk strings")
		}
		return bytes.Fields(bytes.Clone(line)), nil
	}
	n, err := strconv.Atoi(string(line[1:]))
	if err != nil || n > MaxArguments {
		return nil, protocolError("invalid multibulk length %.32q, and %d is the most", line[1:], MaxArguments)
	}
	var command [][]byte
	for left := MaxCommand; n > 0; n-- {
		line, err := readLine(r)
		if err != nil {
			return nil, cut(err)
		}
		if len(line) == 0 || line[0] != '$' {
			return nil, protocolError("expected '$', got %.32q", line)
		}
		size, err := strconv.Atoi(string(line[1:]))
		if err != nil || size < 0 || size > MaxArgument {
			return nil, protocolError("invalid bulk length %.32q, and %d is the most", line[1:], MaxArgument)
		}
		if left -= size; left < 0 {
			return nil, protocolError("a command of more than %d bytes", MaxCommand)
		}
		argument := make([]byte, size+2)
		if _, err := io.ReadFull(r, argument); err != nil {
			return nil, cut(err)
		}
		if string(argument[size:]) != "\r\n" {
			return nil, protocolError("a bulk string of %d bytes does not end with CR LF", size)
		}
		command = append(command, argument[:size])
	}
	return command, nil
}

// whole reports whether b begins with a whole command, so that ReadCommand does not wait for more. It is
// also true of bytes that are no command.
func whole(b []byte) bool {
	line, b, ok := bytes.Cut(b, []byte("\n"))
	if !ok || len(line) == 0 || line[0] != '*' {
		return ok
	}
	n, _ := strconv.Atoi(string(bytes.TrimSuffix(line[1:], []byte("\r"))))
	for ; n > 0; n-- {
		if line, b, ok = bytes.Cut(b, []byte("\n")); !ok || len(line) == 0 {
			return ok
		}
		size, err := strconv.Atoi(string(bytes.TrimSuffix(line[1:], []byte("\r"))))
		if err != nil || size < 0 || size > MaxArgument {
			return true
		}
		if len(b) < size+2 {
			return false
		}
		b = b[size+2:]
	}
	return true
}

// readLine reads a line, which is valid until the next read. Its end is LF or CR LF, as in Redis.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, protocolError("a line of more than %d bytes", r.Size())
	case err != nil:
		return nil, cut(err)
	}
	return bytes.TrimSuffix(line[:len(line)-1], []byte("\r")), nil
}

func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// The answers of RESP2, which are appended to b.

func appendSimple(b []byte, s string) []byte { return fmt.Appendf(b, "+%s\r\n", s) }

func appendInteger(b []byte, n int64) []byte {
	return append(strconv.AppendInt(append(b, ':'), n, 10), "\r\n"...)
}

func appendBulk(b, v []byte) []byte {
	b = append(strconv.AppendInt(append(b, '$'), int64(len(v)), 10), "\r\n"...)
	return append(append(b, v...), "\r\n"...)
}

func appendNull(b []byte) []byte { return append(b, "$-1\r\n"...) }

func appendArray(b []byte, n int) []byte { return fmt.Appendf(b, "*%d\r\n", n) }

// appendError appends an error: a word in capitals and a text. A line's end in it would end the answer.
func appendError(b []byte, text string) []byte {
	b = append(b, '-')
	for _, c := range []byte(text) {
		if c < ' ' {
			c = ' '
		}
		b = append(b, c)
	}
	return append(b, "\r\n"...)
}
