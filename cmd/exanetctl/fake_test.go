package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/exanet/pfd/daemon/control"
)

// fakeDaemon answers requests on a control socket with given answers, by path, and
// keeps the queries.
type fakeDaemon struct {
	socket  string
	queries []string
	asked   func() // called with each request
}

func startDaemon(t *testing.T, answers map[string]any) *fakeDaemon {
	t.Helper()
	d := &fakeDaemon{socket: filepath.Join(t.TempDir(), "s")}
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.queries = append(d.queries, r.Method+" "+r.URL.String())
		if d.asked != nil {
			d.asked()
		}
		answer, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			answer = control.ErrorReply{Version: control.Version, Code: control.CodeNotFound, Error: "no node 9 here"}
		}
		lines, ok := answer.([]any)
		if !ok {
			lines = []any{answer}
		}
		for _, line := range lines {
			if err := json.NewEncoder(w).Encode(line); err != nil {
				t.Error(err)
			}
		}
	})}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != http.ErrServerClosed {
			t.Error(err)
		}
	})
	return d
}

// ctl runs a command line and returns its exit code and output.
func ctl(args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(context.Background(), args, streams{in: &bytes.Buffer{}, out: &o, err: &e, getenv: func(string) string { return "" }})
	return code, o.String(), e.String()
}

var fakeAnswers = map[string]any{
	control.PathStatus: control.Status{
		Version: 1, DaemonVersion: "1.2.3", Protocol: 1, PID: 77, UID: 1000, Device: "emu", Socket: "/run/s", AttachSocket: "/run/s.attach",
		State: control.StateReady, SeesAll: true, UptimeNS: 61e9, Nodes: 2, Domains: 1, Faults: 9, TimeoutUS: 20000, GuardUS: 100000, SourceFaults: "fifo",
	},
	control.PathNodes: control.Nodes{Version: 1, Nodes: []control.Node{
		{Index: 0, ID: 0, Version: "1.0", Caps: 0xb108030, CapNames: []string{"txfifo", "sva"}, VABits: 48, Banks: 16, FIFODepth: 512, Enabled: true, TimeoutUS: 20000, GuardUS: 100000, Outstanding: 8, Domains: 1, Firmware: "no-bypass"},
		{Index: 1, ID: 1, Version: "1.0", CapNames: []string{}, VABits: 48, Banks: 16, FIFODepth: 512, TimeoutUS: 20000, GuardUS: 100000, Outstanding: 8},
	}},
	control.PathDomains: control.Domains{Version: 1, Domains: []control.Domain{
		{Node: 0, Slot: 3, PDID: 0x101, UID: 1000, PID: 4711, Group: "app", Method: "gup", Policy: "p1", Peers: []uint16{0x102, 0x103}, Windows: []control.MemoryWindow{{Address: 0x7f0000001003, SizeBytes: 0x2005, Peer: 0x201, Rights: []string{"read", "write"}}}, State: control.DomainLive, AgeNS: 5e9, Faults: 7, PagesIn: 8, Failed: 1},
		{Node: 1, Slot: 0, PDID: 0x101, UID: 1000, PID: 4712, Group: "app", Method: "touch", Policy: "pa", State: control.DomainLive, AgeNS: 5e9},
	}},
	control.PathChannels: control.Channels{Version: 1, Channels: []control.Channel{
		{Node: 0, Slot: 3, Channel: 0, PDID: 0x101, State: "completed", Src: 0x7f0000001000, Dst: 0x7f0000002000, SizeBytes: 4096, IssuedBytes: 4096, Blocks: 1, Acked: 1, DstNode: 1, DstPDID: 0x101, AgeNS: -1},
		{Node: 0, Slot: 3, Channel: 5, PDID: 0x101, State: "failed", Status: 2, StatusText: "decode error", Src: 0x1000, Dst: 0x2000, SizeBytes: 4097, IssuedBytes: 4097, Blocks: 2, Acked: 1, InFlight: 1, Paused: 1, DstNode: 1, AgeNS: -1},
		{Node: 0, Slot: 3, Channel: 6, PDID: 0x101, State: "ongoing", Src: 0x3000, Dst: 0x4000, SizeBytes: 1 << 20, IssuedBytes: 1 << 18, Blocks: 64, Acked: 8, InFlight: 8, Paused: 3, Retransmitted: 4, DstNode: 1, Class: "low", Window: 8, OldestSequence: 35, NewestSequence: 42, AgeNS: 1250400},
	}},
	control.PathTransactions: control.Transactions{Version: 1, Transactions: []control.Transaction{
		{Node: 0, ID: 12, Slot: 3, Channel: 5, PDID: 0x101, DstNode: 1, DstPDID: 0x101, State: control.TransactionPaused, Class: "low", Sequence: 35, First: 34, Block: 7, Blocks: 12, Acked: 5, OffsetBytes: 114688, LengthBytes: 16384, Attempts: 2, RAPFs: 1, LastCode: 1, AgeNS: 1250000, DueNS: 98750000},
		{Node: 1, ID: 1023, Slot: 0, Channel: 40, PDID: 0x102, DstNode: 0x2abcde, DstPDID: 0x101, State: control.TransactionRetransmitted, Class: "high", Sending: true, Words: true, Sequence: 16383, First: 16383, Blocks: 1, LengthBytes: 64, AgeNS: 700, DueNS: -1},
	}},
	control.PathSMMU: control.SMMU{Version: 1, Banks: []control.SMMUBank{
		{Node: 0, Bank: 3, PDID: 0x101, Enabled: true, Stream: "translate", StreamOn: true, SCTLR: 0x167, FSR: 0x80000002, FSRFlags: []string{"TF", "MULTI"}, FAR: 0x7f0000002000, FSYNR0: 0x10, FaultWrite: true},
		{Node: 0, Bank: 4, Stream: "fault", Enabled: true, FSR: 2}, // that of a process that has ended
	}},
	control.PathGSAS: control.GSAS{Version: 1, SeesAll: true, Trees: []control.GSASTree{
		{
			Node: 0, Interface: 32, Protection: 0x800000, UID: 1000, State: control.TreeLive, SizeBytes: 5 << 12,
			Threads: []control.GSASThread{{Node: 0, Interface: 32, Thread: 0x800000, Slot: 3, PID: 4711}, {Node: 1, Interface: 33, Thread: 0x840001, Slot: -1}},
			Areas:   []control.GSASArea{{Node: 0, Address: 0x1000000000000, Allocations: 2, SizeBytes: 3 << 12}, {Node: 1, Address: 0x2000400000000, Allocations: 1, SizeBytes: 2 << 12}},
		},
		{Node: 1, Interface: 34, Protection: 0x880001, Owner: "b", UID: 1001, State: control.TreeEnded, Threads: []control.GSASThread{}, Areas: []control.GSASArea{}},
	}},
	control.PathHosts: control.Hosts{Version: 1, SeesAll: true, Cluster: "lab", Self: "a", Hostd: true, Hosts: []control.Host{
		{
			Name: "b", Address: "10.0.0.2:7700", FirstNode: 2, LastNode: 5, State: control.HostUnreachable, SinceNS: 65e9, TLS: true,
			Error: "no route to host", ErrorAgeNS: 3e9, Connects: 2, FramesSent: 12, BytesSent: 1 << 20, Dropped: 3,
		},
		{Name: "c", Address: "10.0.0.3:7700", FirstNode: 6, LastNode: 6, State: control.HostUp, SinceNS: 5e9, UDP: true, RTTNS: 64300, Connects: 1, FramesReceived: 9, BytesReceived: 4096, QueuedBulkBytes: 1 << 14},
	}},
	control.PathFIFO: control.FIFOs{Version: 1, FIFOs: []control.FIFO{
		{Node: 0, Name: "rxfifo", Level: 1, Highest: 7, Depth: 512, Overflow: true, Entries: []control.FIFOEntry{{SourceNode: 1, Transaction: 12, Sequence: 34, PDID: 0x101, VA: 0x7f0000002000, Response: 2, RemainingBytes: 8192}}},
		{Node: 0, Name: "txfifo", Highest: -1, Depth: 512, Entries: []control.FIFOEntry{}},
	}},
	control.PathCounters: control.Counters{Version: 1, Counters: []control.Counter{
		{Node: 0, Name: "faults_total", Value: 7, Help: "faults served"},
		{Node: 0, Name: "timeouts_total"},
		{Node: control.AllNodes, Name: "attachments_total", Value: 2},
	}},
	control.PathFaults: control.Faults{Version: 1, Faults: []control.Fault{
		{Node: 1, Slot: 0, PDID: 0x101, Page: 0x7f0000002000, Write: true, Block: true, Method: "gup", Policy: "p1", Kind: "minor", Outcome: "resolved", SourceNode: 0, Transaction: 12, Sequence: 34, PID: 4712, TimeNS: 5, UnixNS: 1764167045123456789, AgeNS: 2500400000, DrainedNS: 1100, StartedNS: 1200, ResidentNS: 5900, RAPFNS: 6000, Stages: control.FaultStages{Drain: 1100, Queue: 100, PageIn: 4700, Answer: 100, Total: 6000}},
		{Node: 0, Slot: 3, PDID: 0x101, Page: 0x1000, Method: "touch", Policy: "p1", Kind: "minor", Outcome: "failed", DrainedNS: 1000, StartedNS: 2000, ResidentNS: -1, RAPFNS: -1, Stages: control.FaultStages{Drain: 1000, Queue: 1000, PageIn: -1, Answer: -1, Total: 1000}},
	}},
	control.PathRegisters: control.Registers{Version: 1, Registers: []control.Register{
		{Window: "pl", Name: "ID", Width: 4, Value: new(control.Hex(0x4e415845)), Source: "spec/hardware.md 3"},
		{Window: "pl", Name: "RXFIFO", Offset: 0x1000, Width: 4, Skipped: true},
	}},
}
