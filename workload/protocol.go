package workload

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// The words of a test process: one JSON object a line, an order and its reply.

// op names an order.
type op string

const (
	opAttach  op = "attach"  // attach to a node: once, first of all
	opPrepare op = "prepare" // make the buffer anew
	opWrite   op = "write"   // write the buffer to the target's
	opVerify  op = "verify"  // check the buffer
	opWarm    op = "warm"    // make and export a small buffer for warming up
	opStats   op = "stats"   // count what the library's page-fault thread did
)

// order is what the parent sends.
type order struct {
	Op      op         `json:"op"`
	Attach  attachment `json:"attach,omitzero"`
	Prepare prepare    `json:"prepare,omitzero"`
	Write   writeOrder `json:"write,omitzero"`
	Verify  verify     `json:"verify,omitzero"`
	Many    []piece    `json:"many,omitempty"`
	Stream  stream     `json:"stream,omitzero"`
	Perf    perfOrder  `json:"perf,omitzero"`
}

// attachment is where and how to attach.
type attachment struct {
	Socket string `json:"socket"` // control socket of pfd
	Node   uint32 `json:"node_id"`
	Group  string `json:"group"`
	Method string `json:"method"`
	Policy string `json:"policy"`
	// Trust are users whose pfd may reach the memory of the test process (rdma.Options).
	Trust []uint32 `json:"trust,omitempty"`
}

// writeOrder is one transfer.
type writeOrder struct {
	Remote  string        `json:"remote"` // the target's buffer, as its Export wrote it
	Waiting Waiting       `json:"waiting"`
	Timeout time.Duration `json:"timeout_ns"`
	// Warm, where not empty, is the target's small buffer: a write into it comes
	// first, and is not measured.
	Warm string `json:"warm,omitempty"`
	// WarmTime is for how long that is done again; 0: once.
	WarmTime time.Duration `json:"warm_time_ns,omitempty"`
	// Parts, where not 0, has so many transfers of equal parts of the buffer follow
	// one another.
	Parts int `json:"parts,omitempty"`
	// Read has the bytes come from the target's buffer into this process's.
	Read   bool `json:"read,omitempty"`
	Urgent bool `json:"urgent,omitempty"`
}

// reply is what a test process answers. Error tells that the process could not
// do what it was told; that a transfer failed is no such error.
type reply struct {
	Error    string    `json:"error,omitempty"`
	Skipped  bool      `json:"skipped,omitempty"` // the machine cannot do it: ErrSkipped
	Attached attached  `json:"attached,omitzero"`
	Remote   string    `json:"remote,omitempty"`
	Outcome  outcome   `json:"outcome,omitzero"`
	Verdict  verdict   `json:"verdict,omitzero"`
	Pages    uint64    `json:"pages,omitempty"` // that the library was asked to touch
	Many     []piece   `json:"many,omitempty"`
	Streamed streamed  `json:"streamed,omitzero"`
	Perf     perfOrder `json:"perf,omitzero"`
}

// attached tells where a test process is.
type attached struct {
	PID  int `json:"pid"`
	Slot int `json:"slot"`
}

// outcome is how a transfer ended.
type outcome struct {
	Done      bool  `json:"done"` // all bytes arrived, as the firmware says
	LatencyNS int64 `json:"latency_ns"`
	// PartNS has the latency of each part; LatencyNS is their sum.
	PartNS []int64 `json:"part_ns,omitempty"`
	Error  string  `json:"error,omitempty"` // why it failed
	// Stuck says that the transfer did not end within its time: nothing is known
	// about the buffers any more.
	Stuck bool `json:"stuck,omitempty"`
}

// errProcess says that a test process is gone or does not follow the protocol.
var errProcess = errors.New("test process")

// maxLine bounds a line of the protocol, bytes.
const maxLine = 1 << 20

// lines reads and writes the protocol's lines.
type lines struct {
	scan *bufio.Scanner
	enc  *json.Encoder
}

func newLines(r io.Reader, w io.Writer) *lines {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 4096), maxLine)
	return &lines{scan: s, enc: json.NewEncoder(w)}
}

func (l *lines) send(v any) error {
	if err := l.enc.Encode(v); err != nil {
		return fmt.Errorf("%w: %w", errProcess, err)
	}
	return nil
}

// receive reads one line; its error is io.EOF at the end.
func (l *lines) receive(v any) error {
	if !l.scan.Scan() {
		if err := l.scan.Err(); err != nil {
			return fmt.Errorf("%w: %w", errProcess, err)
		}
		return io.EOF
	}
	if err := json.Unmarshal(l.scan.Bytes(), v); err != nil {
		return fmt.Errorf("%w: not a line of the protocol: %w", errProcess, err)
	}
	return nil
}
