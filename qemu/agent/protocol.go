// Package agent runs commands in a guest from its host: over ports of a
// virtio-serial device, one session a port at a time.
//
// A port is a stream that outlives whoever holds its ends, so each message is a
// line of JSON that names its session (ours): what is left of a session before,
// or of a line that was cut, is skipped by both sides.
package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// PortName begins the names of the ports: exanet.0, exanet.1 and so on (ours).
const PortName = "exanet."

// Ports is how many sessions a guest can have at once (ours).
const Ports = 8

const (
	// chunk bounds the bytes of data in a message.
	chunk = 32 << 10
	// maxLine bounds a message: a command line and its environment, or a chunk in
	// base64.
	maxLine = 1 << 20
	// window is how many messages of standard input may be on their way: a guest
	// takes them all, so that it always sees the host go.
	window = 32
)

// Message is what host and guest say to each other. Session and one more field
// are set.
type Message struct {
	Session string `json:"session"`

	// From the host. Exec begins a session.
	Exec   *Exec  `json:"exec,omitempty"`
	Stdin  []byte `json:"stdin,omitempty"`
	EOF    bool   `json:"eof,omitempty"` // of standard input
	Resize *Size  `json:"resize,omitempty"`

	// From the guest. Ack tells that a message of standard input was written;
	// Exit ends a session.
	Ack    bool   `json:"ack,omitempty"`
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	Exit   *Exit  `json:"exit,omitempty"`
}

// Exec asks for a command.
type Exec struct {
	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"` // besides the guest's own
	TTY  *Size    `json:"tty,omitempty"` // on a terminal of this size
	// Time is the host's, ns since 1970: a guest that was restored has the time
	// of its saving. 0: unknown.
	Time int64 `json:"time,omitempty"`
}

// Size of a terminal, in characters.
type Size struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

// Exit tells how a command ended: Code as a shell gives it, 128 more than the
// number of a signal; Error where it could not be started.
type Exit struct {
	Code  int    `json:"code"`
	Error string `json:"error,omitempty"`
}

// Decode reads one line. Errors match ErrMessage.
func Decode(line []byte) (Message, error) {
	var m Message
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	if m.Session == "" {
		return m, fmt.Errorf("%w: it names no session", ErrMessage)
	}
	if m.Exec != nil && len(m.Exec.Args) == 0 {
		return m, fmt.Errorf("%w: a command without words", ErrMessage)
	}
	return m, nil
}

// ErrMessage says that a line is no message.
var ErrMessage = errors.New("message of a guest's session")

// stream sends and receives messages.
type stream struct {
	mu sync.Mutex // sending
	w  io.Writer
	r  *bufio.Scanner
}

func newStream(rw io.ReadWriter) *stream {
	s := &stream{w: rw, r: bufio.NewScanner(rw)}
	s.r.Buffer(make([]byte, 0, 64<<10), maxLine)
	return s
}

// begin ends a line that somebody else left unfinished.
func (s *stream) begin() error {
	_, err := s.w.Write([]byte{'\n'})
	return err
}

func (s *stream) send(m Message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) >= maxLine { // the other side would read no line any more
		return fmt.Errorf("%w: %d bytes, the longest has %d: shorten the command or its environment", ErrMessage, len(b), maxLine-1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err = s.w.Write(append(b, '\n'))
	return err
}

// receive gives the next message; lines that are none are skipped. io.EOF ends
// the stream.
func (s *stream) receive() (Message, error) {
	for s.r.Scan() {
		if m, err := Decode(s.r.Bytes()); err == nil {
			return m, nil
		}
	}
	if err := s.r.Err(); err != nil {
		return Message{}, err
	}
	return Message{}, io.EOF
}

// copyOut sends what r gives until its end, or until it cannot be sent.
func (s *stream) copyOut(r io.Reader, message func([]byte) Message) error {
	buf := make([]byte, chunk)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := s.send(message(buf[:n])); err != nil {
				return err
			}
		}
		if err != nil {
			return nil // its end, or a terminal whose last user has gone
		}
	}
}
