package resp

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func read(s string) ([][]byte, error) {
	return ReadCommand(bufio.NewReaderSize(strings.NewReader(s), 4096))
}

func TestReadCommand(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string
		err  string
	}{
		{in: "*1\r\n$4\r\nPING\r\n", want: []string{"PING"}},
		{in: "*3\r\n$3\r\nSET\r\n$2\r\n\r\n\r\n$0\r\n\r\n", want: []string{"SET", "\r\n", ""}},
		{in: "PING\r\n", want: []string{"PING"}},
		{in: "  set  a b \n", want: []string{"set", "a", "b"}},
		{in: "*0\r\n"}, {in: "*-1\r\n"}, {in: "\r\n"},
		{in: "", err: "EOF"},
		{in: "*1\r\n$65537\r\n", err: `Protocol error: invalid bulk length "65537", and 65536 is the most`},
		{in: "*1\r\n$-1\r\n", err: `Protocol error: invalid bulk length "-1", and 65536 is the most`},
		{in: "*4097\r\n", err: `Protocol error: invalid multibulk length "4097", and 4096 is the most`},
		{in: "*x\r\n", err: `Protocol error: invalid multibulk length "x", and 4096 is the most`},
		{in: "*1\r\nGET\r\n", err: `Protocol error: expected '$', got "GET"`},
		{in: "*1\r\n\r\n", err: `Protocol error: expected '$', got ""`},
		{in: "*1\r\n$2\r\nabcd", err: "Protocol error: a bulk string of 2 bytes does not end with CR LF"},
		{in: strings.Repeat("a", 5000), err: "Protocol error: a line of more than 4096 bytes"},
		{in: "*18\r\n" + strings.Repeat("$65536\r\n"+strings.Repeat("x", 65536)+"\r\n", 18), err: "Protocol error: a command of more than 1048576 bytes"},
	} {
		got, err := read(c.in)
		if c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%.40q: %v, want %s", c.in, err, c.err)
			}
			continue
		}
		if err != nil || string(bytes.Join(got, []byte("|"))) != strings.Join(c.want, "|") || len(got) != len(c.want) {
			t.Errorf("%.40q: %q %v, want %q", c.in, got, err, c.want)
		}
	}
}

// TestCut: a command that is cut anywhere is an unexpected end, and no other command.
func TestCut(t *testing.T) {
	const command = "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$12\r\nvalue\r\nvalue\r\n"
	for i := 1; i < len(command); i++ {
		if _, err := read(command[:i]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %v", command[:i], err)
		}
		if whole([]byte(command[:i])) {
			t.Errorf("%q is taken for a whole command", command[:i])
		}
	}
	if !whole([]byte(command)) || !whole([]byte(command+"*1\r\n")) {
		t.Error("a whole command is not seen")
	}
}

// FuzzReadCommand: the command does not depend on the pieces in which it arrives; a whole command is
// read without waiting; and a command that is encoded is read as it was.
func FuzzReadCommand(f *testing.F) {
	for _, s := range []string{"*1\r\n$4\r\nPING\r\n", "PING\r\n", "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", "*1\r\n$1\n", "$", "*1\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		at := bytes.NewReader(in)
		got, err := ReadCommand(bufio.NewReaderSize(at, 16))
		slow, slowErr := ReadCommand(bufio.NewReaderSize(iotest.OneByteReader(bytes.NewReader(in)), 16))
		if len(got) != len(slow) || (err == nil) != (slowErr == nil) {
			t.Fatalf("%q %v at once, %q %v byte by byte", got, err, slow, slowErr)
		}
		if err != nil {
			if whole(in) && errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("%q is taken for whole, and is cut", in)
			}
			return
		}
		if len(got) == 0 {
			return
		}
		b := appendArray(nil, len(got))
		for _, a := range got {
			b = appendBulk(b, a)
		}
		again, err := ReadCommand(bufio.NewReader(bytes.NewReader(b)))
		if err != nil || !bytes.Equal(bytes.Join(again, []byte{0}), bytes.Join(got, []byte{0})) {
			t.Fatalf("%q became %q, %v", got, again, err)
		}
	})
}
