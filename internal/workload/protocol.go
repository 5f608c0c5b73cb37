package workload

import (
	"time"

	"github.com/exanet/pfd/rdma"
)

// The protocol of a test process: one JSON object per line, an order and then its reply.

// op names an order.
type op string

const (
	opAttach  op = "attach"  // attach to a node; the first order, sent once
	opPrepare op = "prepare" // make a buffer anew and export it
	opWrite   op = "write"   // write the buffers to the target's, or read the target's
	opVerify  op = "verify"  // check a buffer
	opStats   op = "stats"   // count the pages of the library's page-fault thread
)

// order is a message of the parent.
type order struct {
	Op      op         `json:"op"`
	Attach  attachment `json:"attach,omitzero"`
	Buffer  int        `json:"buffer,omitempty"` // number of the buffer to prepare or verify
	Prepare prepare    `json:"prepare,omitzero"`
	Write   writeOrder `json:"write,omitzero"`
	Verify  verify     `json:"verify,omitzero"`
	Stream  stream     `json:"stream,omitzero"`
	Perf    perfOrder  `json:"perf,omitzero"`
}

// attachment describes where and how to attach.
type attachment struct {
	Socket string `json:"socket"` // control socket of pfd
	Node   uint32 `json:"node_id"`
	Group  string `json:"group"`
	Method string `json:"method"`
	Policy string `json:"policy"`
	// Trust lists users whose pfd may access the memory of the test process (rdma.Options).
	Trust []uint32 `json:"trust,omitempty"`
}

// target is the memory that the other process has exported for a buffer of this process.
type target struct {
	Remote rdma.Remote `json:"remote"`
	Urgent bool        `json:"urgent,omitempty"` // high class; for writes only
}

// writeOrder orders concurrent transfers, one for each buffer.
type writeOrder struct {
	Targets []target      `json:"targets"`
	Waiting Waiting       `json:"waiting"`
	Timeout time.Duration `json:"timeout_ns"`
	// Warm, if set, is the target's warmBuffer. Writes from this process's warmBuffer into
	// it come first and are not measured.
	Warm rdma.Remote `json:"warm,omitzero"`
	// WarmTime is how long the warm-up writes run; 0 means one write. It and Parts are for the tests
	// in guests, which write orders as JSON.
	WarmTime time.Duration `json:"warm_time_ns,omitempty"`
	// Parts, if not 0, splits each buffer into this number of equal parts, which are
	// transferred one after the other.
	Parts int `json:"parts,omitempty"`
	// Read makes the transfers read the target's buffers into those of this process.
	Read bool `json:"read,omitempty"`
}

// reply is the answer of a test process. Error means that the process could not carry out
// the order; a failed transfer is not such an error.
type reply struct {
	Error    string      `json:"error,omitempty"`
	Skipped  bool        `json:"skipped,omitempty"` // Error matches ErrSkipped
	Attached attached    `json:"attached,omitzero"`
	Remote   rdma.Remote `json:"remote,omitzero"`
	Folio    Folio       `json:"folio,omitzero"`     // of the prepared buffer
	Outcomes []outcome   `json:"outcomes,omitempty"` // all parts of buffer 0, then of buffer 1, ...
	Verdict  verdict     `json:"verdict,omitzero"`
	Pages    uint64      `json:"pages,omitempty"` // pages that the library was asked to touch
	Streamed Streamed    `json:"streamed,omitzero"`
	Perf     perfOrder   `json:"perf,omitzero"`
}

// attached identifies an attached test process.
type attached struct {
	PID  int `json:"pid"`
	Slot int `json:"slot"`
}

// outcome is the result of a transfer.
type outcome struct {
	Done      bool   `json:"done"`       // the firmware reported that all bytes arrived
	LatencyNS int64  `json:"latency_ns"` // from the initiator's call until it sees the end
	Place     int    `json:"place"`      // in the order of completion, from 1
	Error     string `json:"error,omitempty"`
	// Stuck means that the transfer timed out: the buffers' content is undefined.
	Stuck bool `json:"stuck,omitempty"`
}
