package workload

import (
	"time"

	"github.com/exanet/pfd/rdma"
)

// The words of a test process: one JSON object a line, an order and its reply.

// op names an order.
type op string

const (
	opAttach  op = "attach"  // attach to a node: once, first of all
	opPrepare op = "prepare" // make a buffer anew, and export it
	opWrite   op = "write"   // write the buffers to the target's, or read those
	opVerify  op = "verify"  // check a buffer
	opStats   op = "stats"   // count what the library's page-fault thread did
)

// order is what the parent sends.
type order struct {
	Op      op         `json:"op"`
	Attach  attachment `json:"attach,omitzero"`
	Buffer  int        `json:"buffer,omitempty"` // which one is to be prepared or verified
	Prepare prepare    `json:"prepare,omitzero"`
	Write   writeOrder `json:"write,omitzero"`
	Verify  verify     `json:"verify,omitzero"`
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

// target is what the other process has exported for a buffer of this one.
type target struct {
	Remote rdma.Remote `json:"remote"`
	Urgent bool        `json:"urgent,omitempty"` // high class, of a write
}

// writeOrder is transfers at once, one for each buffer.
type writeOrder struct {
	Targets []target      `json:"targets"`
	Waiting Waiting       `json:"waiting"`
	Timeout time.Duration `json:"timeout_ns"`
	// Warm, where it is given, is the target's buffer warmBuffer: writes into it come
	// first, from that of this process, and are not measured.
	Warm rdma.Remote `json:"warm,omitzero"`
	// WarmTime is for how long they go on; 0: one is made.
	WarmTime time.Duration `json:"warm_time_ns,omitempty"`
	// Parts, where not 0, has so many transfers of equal parts of each buffer follow
	// one another.
	Parts int `json:"parts,omitempty"`
	// Read has the bytes come from the target's buffers into this process's.
	Read bool `json:"read,omitempty"`
}

// reply is what a test process answers. Error tells that the process could not
// do what it was told; that a transfer failed is no such error.
type reply struct {
	Error    string      `json:"error,omitempty"`
	Skipped  bool        `json:"skipped,omitempty"` // the machine cannot do it: ErrSkipped
	Attached attached    `json:"attached,omitzero"`
	Remote   rdma.Remote `json:"remote,omitzero"`
	Outcomes []outcome   `json:"outcomes,omitempty"` // of a buffer's parts, then of the next one's
	Verdict  verdict     `json:"verdict,omitzero"`
	Pages    uint64      `json:"pages,omitempty"` // that the library was asked to touch
	Streamed Streamed    `json:"streamed,omitzero"`
	Perf     perfOrder   `json:"perf,omitzero"`
}

// attached tells where a test process is.
type attached struct {
	PID  int `json:"pid"`
	Slot int `json:"slot"`
}

// outcome is how a transfer ended.
type outcome struct {
	Done      bool   `json:"done"`       // all bytes arrived, as the firmware says
	LatencyNS int64  `json:"latency_ns"` // from the initiator's call to its seeing the end
	Place     int    `json:"place"`      // in the order of the ends, from 1
	Error     string `json:"error,omitempty"`
	// Stuck says that the transfer did not end within its time: nothing is known
	// about the buffers any more.
	Stuck bool `json:"stuck,omitempty"`
}
