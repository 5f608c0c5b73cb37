package control

import (
	"encoding/json"
	"time"
)

// Version is the version of the control interface. It is part of every answer and of the
// endpoints' paths.
const Version = 1

// Endpoints of the control interface: GET, except those that change something (docs/v1.md).
const (
	PathStatus       = "/v1/status"         // the daemon as a whole
	PathNodes        = "/v1/nodes"          // identity, capabilities and settings of the nodes
	PathDomains      = "/v1/domains"        // protection domains: one process on one node each
	PathChannels     = "/v1/channels"       // virtual channels that have been used, and their transfers
	PathTransactions = "/v1/transactions"   // blocks in flight
	PathSMMU         = "/v1/smmu"           // context banks
	PathFIFO         = "/v1/fifo"           // page-fault FIFOs; nothing is removed
	PathCounters     = "/v1/counters"       // counters of the nodes and of the daemon
	PathFaults       = "/v1/faults"         // the last faults: n of them, 1024 at most
	PathRegisters    = "/v1/registers"      // registers of all windows, or of one: pl, smmu, btcm, pktz, mbox
	PathGSAS         = "/v1/gsas"           // trees of threads of the global shared address space
	PathHosts        = "/v1/hosts"          // the links to other hosts
	PathDrain        = "/v1/hosts/drain"    // lets no new transfers to a host begin (on=1), or lets them (on=0)
	PathCut          = "/v1/hosts/cut"      // ends the connections to a host and makes none for ms milliseconds, for tests
	PathMonitor      = "/v1/faults/monitor" // faults as they happen, a line each, until the client leaves
	PathGrant        = "/v1/domains/grant"  // admits a PDID to a domain
	PathKick         = "/v1/domains/kick"   // ends an attachment
	PathTrace        = "/v1/trace"          // the eBPF probe's measurements, if pfd keeps its maps
	PathCapture      = "/v1/capture"        // pcapng of the links' traffic, snap bytes of each packet, until the client leaves
	PathMetrics      = "/metrics"           // Prometheus text
)

// AllNodes asks for every node of a daemon. Endpoints that list by node take ?node=INDEX and
// without it answer for all.
const AllNodes = -1

// MaxFaults is the length of a node's fault log and the maximum of ?n=.
const MaxFaults = 1024

// MaxCut is the longest time for which /v1/hosts/cut cuts a link. Defined by this project.
const MaxCut = time.Hour

// Status is the answer of /v1/status: the daemon as a whole.
type Status struct {
	Version       int    `json:"version"`
	DaemonVersion string `json:"daemon_version"` // version of the pfd binary
	Protocol      int    `json:"attach_protocol"`
	PID           int    `json:"pid"`
	UID           uint32 `json:"uid"`
	Device        string `json:"device"`        // as given to --device
	Socket        string `json:"socket"`        // control socket
	AttachSocket  string `json:"attach_socket"` // attachment socket
	State         string `json:"state"`         // StateReady, StateReconnecting, StateDraining, StateFailed
	UptimeNS      int64  `json:"uptime_ns"`
	Nodes         int    `json:"nodes"`
	Domains       int    `json:"domains"`                   // in use, also draining ones
	Handshakes    int    `json:"handshakes"`                // attachments begun and not finished, -1: not shown to this user
	SeesAll       bool   `json:"sees_all"`                  // this user sees everything; false: only its own
	Faults        uint64 `json:"faults_total"`              // faults resolved or refused, all nodes; for a user who does not see all: since its attachments began
	PinnedBytes   int64  `json:"pinned_bytes"`              // VmLck + VmPin of pfd and of every attached process, -1: unknown
	TimeoutUS     uint32 `json:"timeout_us"`                // block time-out
	GuardUS       uint32 `json:"guard_us"`                  // guard time-out of a paused block
	SourceFaults  string `json:"source_faults"`             // "fifo" or "timeout"
	Record        string `json:"record,omitempty"`          // file of the machine's inputs
	Trace         string `json:"trace_registers,omitempty"` // file of the register accesses
}

// States of a daemon.
const (
	StateReady    = "ready"
	StateDraining = "draining" // SIGTERM came: no new attachments
	StateFailed   = "failed"   // the device is gone
	// StateReconnecting: the device of a node is gone, and pfd waits for it.
	StateReconnecting = "reconnecting"
)

// Node is one node of a daemon.
type Node struct {
	Index       int      `json:"node"`          // as exanetctl names it: its id
	ID          uint32   `json:"node_id"`       // coordinates, 22 bits (NODE_ID)
	Version     string   `json:"hw_version"`    // VERSION: major.minor
	Caps        Hex      `json:"caps"`          // CAPS as read
	CapNames    []string `json:"cap_names"`     // txfifo, wide-iova, stall, sva
	VABits      int      `json:"va_bits"`       // width of a VA
	Banks       int      `json:"context_banks"` // SMMU context banks
	FIFODepth   int      `json:"fifo_depth"`    // entries
	Enabled     bool     `json:"enabled"`       // CTRL.enable
	TimeoutUS   uint32   `json:"timeout_us"`    // TIMEOUT_US
	GuardUS     uint32   `json:"guard_us"`      // GUARD_US
	Outstanding uint32   `json:"outstanding"`   // blocks in flight a transfer
	IRQStatus   Hex      `json:"irq_status"`
	IRQMask     Hex      `json:"irq_mask"`
	Domains     int      `json:"domains"` // live on this node
	// Firmware lists the enabled optimizations of the firmware, in the words of pfd
	// --firmware-options; empty if the device is elsewhere and does not report them.
	Firmware string `json:"firmware_options,omitempty"`
	// Transfers of all domains so far; absent for users who do not see everything, and if the
	// device does not report them.
	Transfers *Transfers `json:"transfers,omitempty"`
}

// Transfers are writes of processes, and reads that they served: how many have ended, and their
// bytes.
type Transfers struct {
	Completed uint64 `json:"completed_total"`
	Failed    uint64 `json:"failed_total"`
	Bytes     uint64 `json:"bytes_total"` // of blocks acknowledged by their target, also of transfers that are in flight or failed
}

// Domain is one protection domain: one process on one node.
type Domain struct {
	Node int    `json:"node"`
	Slot int    `json:"slot"` // 0..15
	PDID uint16 `json:"pdid"`
	// Generation is unique to the domain: a later one of the same PDID has another.
	Generation  uint32         `json:"generation"`
	UID         uint32         `json:"uid"`
	PID         int            `json:"pid"`
	Group       string         `json:"group"`
	Member      int            `json:"member"`    // index of the process in its group on this node, 0..15
	Interface   uint8          `json:"interface"` // mailbox and packetizer, 16..63
	Method      string         `json:"method"`    // page-in method: gup, touch, uffd, populate
	Policy      string         `json:"policy"`    // p1, p4, pa, adaptive
	Peers       []uint16       `json:"peers"`     // PDIDs of other domains that may access it
	Windows     []MemoryWindow `json:"windows"`   // ranges of its memory that its process has opened to other PDIDs
	Rings       int            `json:"rings"`     // descriptors on which its process waits (docs/attach.md 11)
	State       string         `json:"state"`     // DomainLive, DomainDraining
	AgeNS       int64          `json:"age_ns"`
	PinnedBytes int64          `json:"pinned_bytes"` // VmLck + VmPin of the process, -1: unknown
	Faults      uint64         `json:"faults_total"`
	PagesIn     uint64         `json:"pages_paged_in_total"`
	Failed      uint64         `json:"failed_resolutions_total"` // blocks answered with the fail bit

	// Memory taken from the process, as far as pfd knows (docs/service.md).
	Invalidations     uint64 `json:"invalidations_total"` // calls
	InvalidationPages uint64 `json:"invalidation_pages_total"`
	Contentions       uint64 `json:"invalidations_faults_contentions_total"`

	// Transfers since it attached; absent if the device does not report them.
	Transfers *Transfers `json:"transfers,omitempty"`
}

// MemoryWindow is a range of a domain's memory that its process has opened to a peer.
type MemoryWindow struct {
	Address   Hex      `json:"address"`
	SizeBytes uint64   `json:"size_bytes"`
	Peer      uint16   `json:"peer"`   // PDID that may use it, 0: every PDID
	Rights    []string `json:"rights"` // read, write, atomic, messages
}

// States of a domain.
const (
	DomainLive     = "live"
	DomainDraining = "draining" // ended, accesses still in flight
)

// States of a tree.
const (
	TreeLive  = "live"
	TreeEnded = "ended" // its last thread has ended, and its pages are being freed
)

// GSASTree is a tree of threads of the global shared address space. Node and Interface are those of its
// root, which may have ended.
type GSASTree struct {
	Node       int          `json:"node"`
	Interface  int          `json:"interface"`
	Protection Hex          `json:"protection_id"`
	Owner      string       `json:"owner"` // the host whose pfd has the tree; "": this one
	UID        uint32       `json:"uid"`
	State      string       `json:"state"`      // live, ended
	SizeBytes  uint64       `json:"size_bytes"` // of its pages, whether or not they were used
	Threads    []GSASThread `json:"threads"`
	Areas      []GSASArea   `json:"areas"`
}

// GSASThread is a thread of a tree.
type GSASThread struct {
	Node      int `json:"node"`
	Interface int `json:"interface"` // its mailbox and packetizer
	Thread    Hex `json:"thread_id"`
	Slot      int `json:"slot"` // of its attachment; -1: the thread has just begun or ended
	PID       int `json:"pid"`
}

// GSASArea is the memory of a tree on a node.
type GSASArea struct {
	Node        int    `json:"node"`
	Address     Hex    `json:"address"` // where its part of the node's partition begins
	Allocations int    `json:"allocations"`
	SizeBytes   uint64 `json:"size_bytes"`
}

// States of the link to another host (docs/spec/hosts.md).
const (
	HostConnecting  = "connecting"  // its connections are being made
	HostUp          = "up"          // transfers run
	HostIdle        = "idle"        // closed, since nothing has used it for a minute; the next transfer brings it up
	HostUnreachable = "unreachable" // without a connection for 5 s; transfers wait
	HostDraining    = "draining"    // no new transfers begin
	HostDrained     = "drained"     // and none is under way
	HostCut         = "cut"         // by exanetctl host cut
	HostGone        = "gone"        // no longer in the table of hosts; its transfers have failed
)

// Host is the link to another host. The fields from Error on tell of all users' transfers: a user who
// may not see those of others gets 0 and "".
type Host struct {
	Name            string `json:"name"`
	Address         string `json:"address"`
	FirstNode       uint32 `json:"first_node_id"` // of its nodes
	LastNode        uint32 `json:"last_node_id"`
	State           string `json:"state"`     // connecting, up, idle, unreachable, draining, drained, cut, gone
	SinceNS         int64  `json:"since_ns"`  // how long it has been in this state
	Connected       bool   `json:"connected"` // it has its connections
	Draining        bool   `json:"draining"`  // no new transfers begin, whatever the state
	TLS             bool   `json:"tls"`
	UDP             bool   `json:"udp"`          // frames travel in datagrams
	RTTNS           int64  `json:"rtt_ns"`       // round trip of the last heartbeat; 0: no connection, or none yet
	Error           string `json:"error"`        // why the last connection ended or failed
	ErrorAgeNS      int64  `json:"error_age_ns"` // how long ago that was
	Connects        uint64 `json:"connects_total"`
	QueuedHighBytes int    `json:"queued_high_bytes"` // acknowledgements and messages that wait to be sent
	QueuedBulkBytes int    `json:"queued_bulk_bytes"` // other frames that wait
	FramesSent      uint64 `json:"frames_sent_total"`
	FramesReceived  uint64 `json:"frames_received_total"`
	BytesSent       uint64 `json:"bytes_sent_total"` // before encryption
	BytesReceived   uint64 `json:"bytes_received_total"`
	Dropped         uint64 `json:"frames_dropped_total"`  // not sent: the link was down or its queue full
	Forged          uint64 `json:"records_forged_total"`  // in the name of a node that is not the host's, or to one that is not ours
	Bad             uint64 `json:"connections_bad_total"` // ended since a record could not be decoded
}

// ChannelOngoing is the state of a channel whose transfer is in flight.
const ChannelOngoing = "ongoing"

// Channel is one virtual channel that has been used: its transfer in the firmware.
type Channel struct {
	Node        int    `json:"node"`
	Slot        int    `json:"slot"`
	Channel     int    `json:"channel"` // 0..31 write, 32..63 read
	PDID        uint16 `json:"pdid"`
	State       string `json:"state"`  // reset, initialized, ongoing, completed, failed
	Status      uint8  `json:"status"` // why it failed: spec/messages.md 1
	StatusText  string `json:"status_text,omitempty"`
	Src         Hex    `json:"src"` // VA at the initiator
	Dst         Hex    `json:"dst"` // VA at the target
	SizeBytes   uint64 `json:"size_bytes"`
	IssuedBytes uint64 `json:"issued_bytes"`
	DstNode     uint32 `json:"dst_node_id"`
	DstPDID     uint16 `json:"dst_pdid"`
	Blocks      int    `json:"blocks"`           // of the transfer
	Acked       int    `json:"blocks_acked"`     // of these, acknowledged
	InFlight    int    `json:"blocks_in_flight"` // issued, not acknowledged
	Paused      int    `json:"blocks_paused"`    // of these, waiting for a RAPF or the guard

	Retransmitted uint32 `json:"blocks_retransmitted"` // retransmissions of blocks

	// Only of a transfer in flight, as are the others from PDID on if CAPS has peek: without the
	// peek windows a device reports only the descriptor.
	Class          string `json:"class,omitempty"`         // of the rest: high, medium, low
	Window         int    `json:"window_blocks,omitempty"` // blocks that may be in flight
	OldestSequence uint16 `json:"oldest_sequence"`         // of the block in flight that was issued first; 0: none
	NewestSequence uint16 `json:"newest_sequence"`         // of the block in flight that was issued last
	AgeNS          int64  `json:"age_ns"`                  // since its doorbell or request; -1: unknown
}

// States of a transaction (001 table 3.1). An acknowledged one has ended: its id is free, and
// blocks_acked counts it.
const (
	TransactionIssued        = "issued"        // waits for its acknowledgement
	TransactionRetransmitted = "retransmitted" // the same, sent before
	TransactionPaused        = "paused"        // a page fault at either end: waits for a RAPF or the guard
	TransactionBackoff       = "backoff"       // refused (codes 3, 4, 7): waits to be retransmitted
)

// Transaction is one block in flight: a used row of the firmware's table.
type Transaction struct {
	Node        int    `json:"node"`
	ID          uint16 `json:"transaction"`
	Slot        int    `json:"slot"`
	Channel     int    `json:"channel"` // 0..31 write, 32..63 read
	PDID        uint16 `json:"pdid"`    // of the slot
	DstNode     uint32 `json:"dst_node_id"`
	DstPDID     uint16 `json:"dst_pdid"`
	State       string `json:"state"`   // issued, retransmitted, paused, backoff
	Class       string `json:"class"`   // of its transfer: high, medium, low
	Sending     bool   `json:"sending"` // the PLDMA is still sending it
	Words       bool   `json:"words"`   // carries the completion words
	Sequence    uint16 `json:"sequence"`
	First       uint16 `json:"first_sequence"` // of this use of the id
	Block       uint32 `json:"block"`          // number in the transfer
	Blocks      uint32 `json:"blocks"`         // of the transfer
	Acked       uint32 `json:"blocks_acked"`   // of these, acknowledged
	OffsetBytes uint32 `json:"offset_bytes"`   // in the transfer
	LengthBytes uint32 `json:"length_bytes"`
	Attempts    int    `json:"attempts"`  // retransmissions since the last ACK or RAPF
	RAPFs       int    `json:"rapfs"`     // requests for retransmission
	LastCode    uint8  `json:"last_code"` // of its last NACK, 0: none: 001 table 3.2
	AgeNS       int64  `json:"age_ns"`
	DueNS       int64  `json:"due_ns"` // until its time-out, guard or end of back-off; -1: none runs
}

// SMMUBank is one context bank and the stream that leads to it.
type SMMUBank struct {
	Node       int      `json:"node"`
	Bank       int      `json:"bank"`
	PDID       uint16   `json:"pdid"`        // of the slot tied to it, 0: none
	Enabled    bool     `json:"enabled"`     // SCTLR.M
	Stream     string   `json:"stream_type"` // translate, bypass, fault
	StreamOn   bool     `json:"stream_valid"`
	SCTLR      Hex      `json:"sctlr"`
	FSR        Hex      `json:"fsr"`
	FSRFlags   []string `json:"fsr_flags"` // TF, PF, MULTI, ...
	FAR        Hex      `json:"far"`
	FSYNR0     Hex      `json:"fsynr0"`
	FSYNR1     Hex      `json:"fsynr1"`
	TTBR0      Hex      `json:"ttbr0"`
	TCR        Hex      `json:"tcr"`
	TLBSTATUS  Hex      `json:"tlbstatus"`
	FaultWrite bool     `json:"fault_write"` // FSYNR0.WNR: the fault is at a destination
}

// FIFO is the state of a page-fault FIFO; reading it removes nothing.
type FIFO struct {
	Node     int         `json:"node"`
	Name     string      `json:"name"`          // rxfifo (destination faults), txfifo (source faults)
	Level    int         `json:"level"`         // entries now
	Highest  int         `json:"highest_level"` // that pfd has found since its start; -1: not shown to this user
	Depth    int         `json:"depth"`         // maximum of entries
	Overflow bool        `json:"overflow"`      // an entry was dropped since it was last cleared
	Entries  []FIFOEntry `json:"entries"`       // oldest first, without those of another uid
}

// FIFOEntry is one entry of a page-fault FIFO (000 table 3.2).
type FIFOEntry struct {
	SourceNode     uint32 `json:"source_node_id"`
	Transaction    uint16 `json:"transaction"`
	Sequence       uint16 `json:"sequence"`
	PDID           uint16 `json:"pdid"`
	Process        uint8  `json:"process"` // index in the domain
	VA             Hex    `json:"va"`      // of the page
	Response       uint8  `json:"response"`
	RemainingBytes uint32 `json:"remaining_bytes"` // of the transfer, as its sender stated
}

// Counter is one counter. Node is its node's id, or AllNodes for a counter of the daemon. Names
// end in _total.
type Counter struct {
	Node  int    `json:"node"`
	Name  string `json:"name"`
	Value uint64 `json:"value"`
	Help  string `json:"help,omitempty"`
}

// Names of the driver's counters, one set for each node. The hardware's follow them: the names of
// device.Counter with _total appended (retransmits_total, timeouts_total, rapf_rx_total, ...).
const (
	CounterFaults            = "faults_total"             // entries served: FIFO, and FSR for source faults
	CounterPagesIn           = "pages_paged_in_total"     // pages made resident, except by method touch, which pfd does not see
	CounterAhead             = "pages_ahead_total"        // by policy adaptive
	CounterUnused            = "pages_ahead_unused_total" // of these, those that were not used
	CounterRAPF              = "rapf_sent_total"          // retransmissions requested
	CounterFailed            = "failed_resolutions_total" // faults answered with the fail bit
	CounterMinor             = "faults_minor_total"
	CounterMajor             = "faults_major_total"
	CounterPermission        = "faults_permission_total"
	CounterInterrupts        = "driver_interrupts_total"
	CounterMailbox           = "driver_mailbox_messages_total" // drained from mailboxes 3..15
	CounterAttached          = "attachments_total"
	CounterRefused           = "attachments_refused_total"
	CounterDropped           = "connections_dropped_total" // to either socket, of a user with too many
	CounterInvalidations     = "invalidations_total"       // calls, as far as pfd knows (docs/service.md)
	CounterInvalidationPages = "invalidation_pages_total"  // pages that they removed from the device
	CounterConflicts         = "invalidations_faults_contentions_total"
	CounterLeases            = "leases_lost_total"   // memory accesses that slept so long that their domain is served separately
	CounterKicksMuted        = "kicks_muted_total"   // times that pfd ignored a process's wake-ups for a while
	CounterCallsRefused      = "calls_refused_total" // page-ins and accesses for which no thread was free
	CounterShared            = "shared_accesses_total"
	CounterSharedMissed      = "shared_misses_total"
	CounterEnded             = "attachments_ended_total"
	CounterUnattributed      = "faults_unattributed_total" // of a PDID that no domain has
)

// Fault is one fault of the fault log, newest last. Its times are nanoseconds after TimeNS, those
// of Stages the length of each stage; -1: not reached.
type Fault struct {
	Node        int    `json:"node"`
	Slot        int    `json:"slot"`
	PDID        uint16 `json:"pdid"`
	Page        Hex    `json:"page"`             // VA of the faulting page
	Write       bool   `json:"write"`            // at the destination; false: at the source
	Method      string `json:"method"`           // gup, touch, uffd, populate
	Policy      string `json:"policy"`           // p1, p4, pa, adaptive
	Kind        string `json:"kind"`             // minor, major, permission
	Outcome     string `json:"outcome"`          // resolved, failed, ...
	Reason      string `json:"reason,omitempty"` // why the page is not resident
	SourceNode  uint32 `json:"source_node_id"`   // of the transaction
	Block       bool   `json:"block"`            // false: reported by FAR alone, without a transaction
	Transaction uint16 `json:"transaction"`
	Sequence    uint16 `json:"sequence"`
	PID         int    `json:"pid"`          // of the process whose memory it is; 0: unknown (its attachment ended long ago)
	TimeNS      int64  `json:"time_ns"`      // of the interrupt, pfd's monotonic clock
	UnixNS      int64  `json:"time_unix_ns"` // the same by the machine's clock, since 1970
	AgeNS       int64  `json:"age_ns"`       // of the interrupt, at the answer
	DrainedNS   int64  `json:"drained_ns"`   // entry taken from the FIFO, -1: not reached
	StartedNS   int64  `json:"page_in_ns"`   // time when the page-in began (in Stages the same key is a length), -1: not reached
	ResidentNS  int64  `json:"resident_ns"`  // page resident, -1: not reached
	RAPFNS      int64  `json:"rapf_sent_ns"` // retransmission requested, -1: not reached

	Stages FaultStages `json:"stages"`
}

// FaultStages are the lengths of a fault's stages, nanoseconds, by their names in docs/tracing.md
// and the metrics; -1: the fault did not pass the stage.
type FaultStages struct {
	Drain  int64 `json:"drain_ns"`
	Queue  int64 `json:"queue_ns"`
	PageIn int64 `json:"page_in_ns"`
	Answer int64 `json:"answer_ns"`
	Total  int64 `json:"total_ns"`
}

// Register is one register as read. Registers with a side effect on reading (the FIFOs' heads,
// mailboxes' data) are listed with Skipped and without a value.
type Register struct {
	Node    int    `json:"node"`
	Window  string `json:"window"` // pl, smmu, btcm, pktz, mbox
	Name    string `json:"name"`   // with its index: SMR[3]
	Offset  Hex    `json:"offset"`
	Width   int    `json:"width_bytes"`
	Value   *Hex   `json:"value,omitempty"` // nil if Skipped
	Skipped bool   `json:"skipped,omitempty"`
	Source  string `json:"source,omitempty"`
}

// Answers of the listing endpoints.
type (
	// Nodes is the answer of /v1/nodes.
	Nodes struct {
		Version int    `json:"version"`
		SeesAll bool   `json:"sees_all"` // as in Status
		Nodes   []Node `json:"nodes"`
	}
	// Domains is the answer of /v1/domains.
	Domains struct {
		Version int      `json:"version"`
		SeesAll bool     `json:"sees_all"` // as in Status
		Domains []Domain `json:"domains"`
	}
	// Channels is the answer of /v1/channels.
	Channels struct {
		Version  int       `json:"version"`
		SeesAll  bool      `json:"sees_all"` // as in Status
		Channels []Channel `json:"channels"`
	}
	// Transactions is the answer of /v1/transactions.
	Transactions struct {
		Version      int           `json:"version"`
		SeesAll      bool          `json:"sees_all"` // as in Status
		Transactions []Transaction `json:"transactions"`
	}
	// GSAS is the answer of /v1/gsas.
	GSAS struct {
		Version int        `json:"version"`
		SeesAll bool       `json:"sees_all"` // as in Status
		Trees   []GSASTree `json:"trees"`
	}
	// Hosts is the answer of /v1/hosts, /v1/hosts/drain and /v1/hosts/cut.
	Hosts struct {
		Version int    `json:"version"`
		SeesAll bool   `json:"sees_all"` // as in Status
		Cluster string `json:"cluster"`  // of the table of hosts; "": there was none yet
		Self    string `json:"self"`     // this host's name in it
		Hostd   bool   `json:"hostd"`    // exanet-hostd is connected
		Refused string `json:"refused"`  // why its last table is not in effect
		// Certificate says whose certificate ends first, this host's or that of the authority; "": TLS is off.
		Certificate       string `json:"certificate"`
		CertificateLeftNS int64  `json:"certificate_left_ns"` // until then
		Hosts             []Host `json:"hosts"`
	}
	// SMMU is the answer of /v1/smmu.
	SMMU struct {
		Version int        `json:"version"`
		SeesAll bool       `json:"sees_all"` // as in Status
		Banks   []SMMUBank `json:"banks"`
	}
	// FIFOs is the answer of /v1/fifo.
	FIFOs struct {
		Version int    `json:"version"`
		SeesAll bool   `json:"sees_all"` // as in Status
		FIFOs   []FIFO `json:"fifos"`
	}
	// Counters is the answer of /v1/counters.
	Counters struct {
		Version  int       `json:"version"`
		SeesAll  bool      `json:"sees_all"` // as in Status
		Counters []Counter `json:"counters"`
	}
	// Faults is the answer of /v1/faults.
	Faults struct {
		Version int     `json:"version"`
		SeesAll bool    `json:"sees_all"` // as in Status
		Faults  []Fault `json:"faults"`
	}
	// Registers is the answer of /v1/registers.
	Registers struct {
		Version   int        `json:"version"`
		Registers []Register `json:"registers"`
	}
	// Changed is the answer of /v1/domains/grant and /v1/domains/kick: the domain's new state.
	Changed struct {
		Version int    `json:"version"`
		Domain  Domain `json:"domain"`
		// Ended: the attachment has ended. False after a kick: accesses are still in flight, and
		// the domain ends when they have.
		Ended bool `json:"ended"`
	}
	// FaultEvent is one line of /v1/faults/monitor: a fault whose outcome is final, or how many
	// were left out because the client reads too slowly. The first line has neither.
	FaultEvent struct {
		Version int    `json:"version"`
		Fault   *Fault `json:"fault,omitempty"`
		Lost    uint64 `json:"lost,omitempty"`
	}
	// ErrorReply is the answer of every endpoint with a status other than 200.
	ErrorReply struct {
		Version int    `json:"version"`
		Code    string `json:"code"`  // one of the codes of an ErrorReply
		Error   string `json:"error"` // a sentence with what to do
	}
)

// Codes of an ErrorReply.
const (
	CodeBadRequest = "bad_request"
	CodeForbidden  = "forbidden"
	CodeNotFound   = "not_found"
	CodeMethod     = "method_not_allowed"
	CodeDeviceGone = "device_gone"
	CodeTimeout    = "timeout"
	CodeInternal   = "internal"
	// CodeBusy refuses a request of a user, or of all users together, beyond their bound.
	CodeBusy = "busy"
	// CodeNotSupported: the device does not report it.
	CodeNotSupported = "not_supported"
)

// Trace is the answer of PathTrace.
type Trace struct {
	Version int             `json:"version"`
	Report  json.RawMessage `json:"report"` // a probe.Report
}
