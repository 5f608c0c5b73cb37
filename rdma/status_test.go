package rdma

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
)

// The error of each status names the cause, what to do and the transfer, for reads and writes
// (messages.md 1 and 2; 001 table 3.2).
func TestTransferErrorNamesTheCause(t *testing.T) {
	for _, tt := range []struct {
		status uint8
		want   error
		cause  string
		remedy string
	}{
		{device.StatusSlaveError, ErrSlaveError, "memory of the transfer does not answer: its pages are not paged in", "fault log"},
		{device.StatusDecode, ErrAddress, "an address is not mapped", "long enough"},
		{device.StatusNoContext, ErrNoContext, "no receive context left", "fewer transfers to that node in flight"},
		{device.StatusCorrupt, ErrCorrupt, "packets arrive corrupted", "crc counters of both nodes"},
		{device.StatusDomain, ErrDomain, "does not admit this protection domain", "exanetctl domain grant"},
		{device.StatusReserved, ErrReserved, "a reserved code", "report it"},
		{device.StatusBufferFull, ErrBufferFull, "the target's buffer is full", "made room"},
		{device.StatusLimit, ErrRetransmissions, "within the retransmission limit", "exanetctl fault show"},
		{device.StatusAborted, ErrAborted, "aborted by its process", "nothing to do"},
		{device.StatusGone, ErrGone, "its domain or the node is gone, or the node's host is drained", "exanetctl host"},
		{device.StatusMemory, ErrMemory, "the kernel does not page in memory", "exanetctl fault show"},
	} {
		for kind, e := range map[string]*TransferError{
			"transfer of 4096 bytes to node 5, PDID 257, address ":  {Code: tt.status, Size: 4096, Dst: 0x7f0000002000, Node: 5, PDID: 257, Detail: "why"},
			"read of 4096 bytes from node 5, PDID 257, address 0x7": {Code: tt.status, Size: 4096, Dst: 0x7f0000002000, Node: 5, PDID: 257, Detail: "why", Read: true},
		} {
			text := e.Error()
			for _, want := range []string{tt.cause, tt.remedy, fmt.Sprintf("status %d (why): ", tt.status)} {
				if !strings.Contains(text, want) {
					t.Errorf("status %d: %q does not say %q", tt.status, text, want)
				}
			}
			if !strings.HasPrefix(text, kind) {
				t.Errorf("status %d: %q does not begin with %q", tt.status, text, kind)
			}
			for _, other := range outcomes {
				if got := other.err != nil && errors.Is(e, other.err); got != (other.err != nil && errors.Is(tt.want, other.err)) {
					t.Errorf("status %d matches %v: %v", tt.status, other.err, got)
				}
			}
		}
	}
}

// docs/troubleshooting.md has a line for each status of a failed transfer, and docs/limits.md the
// limits of this package and of the device.
func TestDocsHaveEachStatusAndLimit(t *testing.T) {
	text, err := os.ReadFile("../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for code, name := range []string{
		device.StatusSlaveError: "ErrSlaveError", device.StatusDecode: "ErrAddress", device.StatusNoContext: "ErrNoContext",
		device.StatusCorrupt: "ErrCorrupt", device.StatusDomain: "ErrDomain", device.StatusReserved: "ErrReserved",
		device.StatusBufferFull: "ErrBufferFull", device.StatusLimit: "ErrRetransmissions", device.StatusAborted: "ErrAborted",
		device.StatusGone: "ErrGone", device.StatusMemory: "ErrMemory",
	} {
		if line := fmt.Sprintf("| %d | `%s` | ", code, name); name != "" && !strings.Contains(string(text), line) {
			t.Errorf("docs/troubleshooting.md has no line %q", line)
		}
	}
	if text, err = os.ReadFile("../docs/limits.md"); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		fmt.Sprintf("| processes on a node | %d |", device.Slots),
		fmt.Sprintf("| %d writes and %d reads |", device.WriteChannels, device.ChannelsPerSlot-device.WriteChannels),
		fmt.Sprintf("| bytes of a block | %s |", thousands(device.BlockSize)),
		fmt.Sprintf("| blocks in flight on a node | %s;", thousands(device.Transactions)),
		fmt.Sprintf("| faults logged at one time | %d |", device.FIFODepth),
		fmt.Sprintf("| bytes of a transfer | 1 to %s |", thousands(math.MaxUint32)),
	} {
		if !strings.Contains(string(text), line) {
			t.Errorf("docs/limits.md has no line with %q", line)
		}
	}
}

// thousands formats n as the documents do.
func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
