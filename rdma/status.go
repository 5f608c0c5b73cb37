package rdma

import (
	"errors"
	"fmt"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
)

// Status is the state of a transfer (001 table 2.1).
type Status uint8

// The states.
const (
	// Ongoing: DMA_ONGOING.
	Ongoing Status = iota
	// Paused: DMA_PAUSED_NO_ERROR. Blocks of the transfer wait for a page-in. The thesis uses the
	// name for a stopped transfer; this use is defined here.
	Paused
	// Finished: DMA_FINISHED.
	Finished
	// Failed: DMA_FINISHED_WITH_ERROR. Err returns the cause.
	Failed
)

var statusNames = [...]string{"DMA_ONGOING", "DMA_PAUSED_NO_ERROR", "DMA_FINISHED", "DMA_FINISHED_WITH_ERROR"}

// String returns the seed's name of the state (001 table 2.1).
func (s Status) String() string {
	if int(s) >= len(statusNames) {
		return fmt.Sprintf("Status(%d)", uint8(s))
	}
	return statusNames[s]
}

// Final reports whether the transfer has ended, successfully or not.
func (s Status) Final() bool { return s == Finished || s == Failed }

// Causes of a failed transfer: a *TransferError matches one of these by its status code
// (messages.md 1 and 2; 001 table 3.2).
var (
	ErrSlaveError      = errors.New("memory of the transfer does not answer: its pages are not paged in")
	ErrAddress         = errors.New("an address is not mapped, lies beyond the end of the mapped file, may not be accessed, is not shared with the device, or cannot be reached")
	ErrNoContext       = errors.New("the target node has no receive context left")
	ErrCorrupt         = errors.New("packets arrive corrupted")
	ErrDomain          = errors.New("the target does not admit this protection domain")
	ErrReserved        = errors.New("the device returned a reserved code")
	ErrBufferFull      = errors.New("the target's buffer is full")
	ErrRetransmissions = errors.New("a block made no progress within the retransmission limit")
	ErrAborted         = errors.New("the transfer was aborted by its process")
	ErrMemory          = errors.New("the kernel does not page in memory of the transfer")
	ErrGone            = errors.New("the attachment, its domain or the node is gone, or the node's host is drained")
)

// Errors of calls.
var (
	// ErrNoDaemon says that no pfd listens on the socket.
	ErrNoDaemon = attach.ErrNoDaemon
	// ErrVersion says that the library and pfd have different versions.
	ErrVersion = attach.ErrVersion
	// ErrBusy says that all 32 channels have transfers in flight, or for a message that all
	// channels of the packetizer are taken.
	ErrBusy = errors.New("all channels busy")
	// ErrRefused says that a message was refused by its receiver's node.
	ErrRefused = errors.New("refused: the receiver's mailbox is full, the receiver does not admit this domain, or it has ended")
	// ErrClosed says that the endpoint was closed.
	ErrClosed = errors.New("endpoint closed")
	// ErrRequest says that a request is invalid.
	ErrRequest = errors.New("bad request")
	// ErrUnconfirmed says that pfd did not confirm the end of an attachment in time: it may still
	// access memory of the process.
	ErrUnconfirmed = errors.New("pfd did not confirm the end of the attachment")
)

// outcome is the error of a status code and what to do about it.
type outcome struct {
	err    error
	remedy string
}

var outcomes = [...]outcome{
	device.StatusSlaveError: {ErrSlaveError, "the process is stopped, or nobody serves its userfaultfd or file system: see the fault log (exanetctl fault show); write again when that has changed"},
	device.StatusDecode:     {ErrAddress, "check that source, destination and notification address are mapped with the right to read or write, that their files are long enough (a truncated file has no pages beyond its end), that memory for a device elsewhere comes from Alloc or Share (exanetctl fault show says which address is not shared), that the addresses fit the node's width, and that the target's node exists (exanetctl node show, for those of other hosts exanetctl host)"},
	device.StatusNoContext:  {ErrNoContext, "have fewer transfers to that node in flight and write again"},
	device.StatusCorrupt:    {ErrCorrupt, "look at the crc counters of both nodes (exanetctl counter show); the link is broken"},
	device.StatusDomain:     {ErrDomain, "attach both processes with one group and let the target admit it (Options.AcceptGroup), or have the target accept this PDID (Options.Accept, exanetctl domain grant) or open this memory to it (Endpoint.Window); if the target has ended, its Remote is stale: take a new one; between hosts the group must also be in the file groups of both pfds (pfd --groups)"},
	device.StatusReserved:   {ErrReserved, "report it: no device of this version returns it"},
	device.StatusBufferFull: {ErrBufferFull, "write again when the target has made room"},
	device.StatusLimit:      {ErrRetransmissions, "the target's pages are not paged in or the path to it is broken: see exanetctl fault show and counter show, then write again"},
	device.StatusAborted:    {ErrAborted, "nothing to do"},
	device.StatusGone:       {ErrGone, "attach again and write again; for a node of another host see exanetctl host: it is drained, or was removed from the list of hosts"},
	device.StatusMemory:     {ErrMemory, "see the fault log of its node for the reason (exanetctl fault show): no memory left, a full file system (a tmpfs), no free huge page, memory that is its process's alone; write again when that has changed"},
}

// TransferError is the error of a failed transfer. It matches the sentinel of its status code
// (errors.Is) and names the transfer, the cause and what to do.
type TransferError struct {
	Code    uint8 // device.Status…: 1..11
	Size    uint64
	Dst     device.VA
	Node    device.NodeID // of the destination
	PDID    device.PDID   // of the destination, 0: this process's own
	Channel int
	Detail  string // why the attachment ended, for StatusGone
	Cause   string // of StatusDecode on a node without Info.SVA: the memory that is not shared
	Read    bool   // of a read: Dst, Node and PDID are those of the target
}

// Error returns the error with its cause and what to do.
func (e *TransferError) Error() string {
	o := e.outcome()
	detail := ""
	if e.Cause != "" { // more specific than the sentinel's text
		o = outcome{errUnshared, e.Cause}
	}
	if e.Detail != "" {
		detail = " (" + e.Detail + ")"
	}
	if e.Read {
		return fmt.Sprintf("read of %d bytes from node %d, PDID %d, address %v failed: %v, status %d%s: %s",
			e.Size, e.Node, e.PDID, e.Dst, o.err, e.Code, detail, o.remedy)
	}
	return fmt.Sprintf("transfer of %d bytes to node %d, PDID %d, address %v failed: %v, status %d%s: %s",
		e.Size, e.Node, e.PDID, e.Dst, o.err, e.Code, detail, o.remedy)
}

// Unwrap returns the sentinel of the status code.
func (e *TransferError) Unwrap() error { return e.outcome().err }

func (e *TransferError) outcome() outcome {
	if int(e.Code) < len(outcomes) && outcomes[e.Code].err != nil {
		return outcomes[e.Code]
	}
	return outcome{errUnknown, "the device speaks a newer version: install the library and pfd of one release"}
}

// errUnshared is the text if Cause is more specific than ErrAddress, which Unwrap still returns.
var errUnshared = errors.New("an address is not shared with the device")

var errUnknown = errors.New("unknown status code")
