// Package agent runs commands in a guest from its host, over ports of a virtio-serial device. A
// port carries one session at a time.
//
// A port is a stream that outlives the programs at its ends. So each message is a line of JSON
// that names its session (defined by this project): both sides skip messages of an earlier
// session, and cut lines.
package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// PortName is the prefix of the ports' names: exanet.0, exanet.1 and so on; defined by this
// project.
const PortName = "exanet."

// Ports is how many sessions a guest can have at once; defined by this project.
const Ports = 8

const (
	// chunk is the limit of data bytes in a message.
	chunk = 32 << 10
	// maxLine is the limit of a message: a command line with its environment, or a chunk in
	// base64.
	maxLine = 1 << 20
	// window is how many messages of standard input may be in flight. The guest reads them all,
	// so it always notices when the host disconnects.
	window = 32
)

// Message is a message between host and guest. It has Session and one more field.
type Message struct {
	Session string `json:"session"`

	// From the host. Exec starts a session.
	Exec   *Exec  `json:"exec,omitempty"`
	Stdin  []byte `json:"stdin,omitempty"`
	EOF    bool   `json:"eof,omitempty"` // of standard input
	Resize *Size  `json:"resize,omitempty"`

	// From the guest. Ack acknowledges that a message of standard input was written; Exit ends
	// a session.
	Ack    bool   `json:"ack,omitempty"`
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	Exit   *Exit  `json:"exit,omitempty"`
}

// Exec starts a command.
type Exec struct {
	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"` // added to the guest's own
	TTY  *Size    `json:"tty,omitempty"` // on a terminal of this size
	// Time is the host's time in ns since 1970, because a restored guest has the time of its
	// saving. 0: unknown.
	Time int64 `json:"time,omitempty"`
}

// Size is the size of a terminal in characters.
type Size struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

// Exit is the result of a command. Code is the exit code as a shell reports it: 128 plus the
// number for a signal. Error is set if the command could not be started.
type Exit struct {
	Code  int    `json:"code"`
	Error string `json:"error,omitempty"`
}

// Decode parses one line. Errors match ErrMessage.
func Decode(line []byte) (Message, error) {
	var m Message
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	if m.Session == "" {
		return m, fmt.Errorf("%w: it has no session", ErrMessage)
	}
	if m.Exec != nil && len(m.Exec.Args) == 0 {
		return m, fmt.Errorf("%w: the command has no words", ErrMessage)
	}
	return m, nil
}

// ErrMessage reports that a line is not a valid message.
var ErrMessage = errors.New("message of a guest's session")

// stream sends and receives messages.
type stream struct {
	mu sync.Mutex // held while sending
	w  io.Writer
	r  *bufio.Scanner
}

func newStream(rw io.ReadWriter) *stream {
	s := &stream{w: rw, r: bufio.NewScanner(rw)}
	s.r.Buffer(make([]byte, 0, 64<<10), maxLine)
	return s
}

// begin ends a line that an earlier session may have left incomplete.
func (s *stream) begin() error {
	_, err := s.w.Write([]byte{'\n'})
	return err
}

func (s *stream) send(m Message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) >= maxLine { // the other side would stop reading
		return fmt.Errorf("%w: it has %d bytes, the limit is %d: shorten the command or its environment", ErrMessage, len(b), maxLine-1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err = s.w.Write(append(b, '\n'))
	return err
}

// receive returns the next message and skips invalid lines. At the end of the stream it returns
// io.EOF.
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

// copyOut sends the data of r until its end, or until sending fails.
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
			return nil // the end, or a terminal without users
		}
	}
}
