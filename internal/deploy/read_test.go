package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/pcapng"
)

// read starts exanetctl read.
func (d *daemon) read(args ...string) *process {
	d.t.Helper()
	return start(d.t, "exanetctl", append([]string{"--socket", d.socket, "read", "-o", "json"}, args...)...)
}

// TestReads reads with the device in another process: absent memory at either end or at both,
// in a window that holds it and in one that does not.
func TestReads(t *testing.T) {
	for _, window := range []string{"65536", "268435456"} {
		t.Run("window "+window, func(t *testing.T) {
			l := newPlace(t)
			l.serve()
			d := l.daemon([]int{0, 1}, "--window", window)
			for i, args := range [][]string{
				{"--size", "64KiB", "--src", "absent", "--dst", "absent", "--policy", "p4", "--offset", "100"},
				{"--size", "1MiB", "--src", "absent", "--policy", "pa"},
				{"--size", "1MiB", "--dst", "absent", "--policy", "pa"},
				{"--size", "1"},
				{"--size", "4KiB", "--src", "absent"},
				{"--size", "4097", "--dst", "absent", "--offset", "4090"},
				{"--size", "1MiB", "--src", "alternate", "--dst", "alternate"},
				{"--size", "16385", "--from", "1", "--to", "0", "--src", "absent", "--dst", "absent"},
				{"--size", "64KiB", "--from", "0", "--to", "0", "--src", "absent", "--dst", "absent"},
			} {
				if i > 2 && window == "65536" {
					break // the large window covers these
				}
				const count = 3
				p := d.read(append(args, "--count", fmt.Sprint(count))...)
				r, code := outcome(p)
				if code != 0 || r.Transfers != count || r.Failed != 0 || !r.Verified || r.PinnedBytes != 0 {
					t.Fatalf("read %v: exit code %d, %+v, %s", args, code, r, p.err.String())
				}
				if absent := slices.Contains(args, "absent") || slices.Contains(args, "alternate"); absent && r.Faults == 0 {
					t.Errorf("%v: no fault", args)
				}
			}
			// An unmapped or read-only buffer is an error and affects no other transfer.
			for _, args := range [][]string{{"--src", "unmapped"}, {"--dst", "unmapped"}, {"--dst", "readonly"}} {
				r, code := outcome(d.read(append(args, "--size", "64KiB", "--count", "2")...))
				if code != 1 || r.Failed != 2 || !r.Verified || r.Error == nil || !strings.Contains(*r.Error, "status 2") {
					t.Errorf("read %v: exit code %d, %+v", args, code, r)
				}
			}
		})
	}
}

// TestFirmwareElsewhere: the firmware's options belong to the process that serves the device.
// Errors about state that only that firmware has name that process.
func TestFirmwareElsewhere(t *testing.T) {
	l := newPlace(t)
	links := l.file("links.pcapng")
	server := l.serve("--firmware-options", "none", "--capture", links)
	d := l.daemon([]int{0, 1})
	d.good(2, "--size", "1MiB", "--dst", "absent")
	nodes, err := d.Nodes(t.Context(), control.AllNodes)
	if err != nil || len(nodes) != 2 || nodes[0].Firmware != "" {
		t.Errorf("nodes %+v, %v", nodes, err)
	}
	show := func(args ...string) *process {
		p := start(t, "exanetctl", append([]string{"--socket", d.socket}, args...)...)
		p.wait()
		return p
	}
	for _, args := range [][]string{{"transaction"}, {"transaction", "-j"}} {
		p := show(args...)
		says := p.err.String()
		if p.wait() != 1 || !strings.Contains(says, "no register shows them") || !strings.Contains(says, "`exanetctl channel`") || p.out.Len() != 0 {
			t.Errorf("%v: exit code %d, %q, %q", args, p.wait(), p.out.String(), says)
		}
	}
	var channels control.Channels
	p := show("channel", "-j")
	if err := json.Unmarshal(p.out.Bytes(), &channels); err != nil || p.wait() != 0 {
		t.Errorf("channels: exit code %d, %v: %s", p.wait(), err, p.err.String())
	}
	if p := start(t, "exanetctl", "emu", "serve", "--socket-dir", l.file("none"), "--firmware-options", "fast"); p.wait() != 2 || !strings.Contains(p.err.String(), `"fast": give all, none, or a list of fastpath`) {
		t.Errorf("an unknown option: exit code %d, %s", p.wait(), p.err.String())
	}
	if p := start(t, "pfd", "--socket", l.file("other.sock"), "--device", "vfio-user:"+l.file("node0.sock"), "--firmware-options", "all"); p.wait() != 2 ||
		!strings.Contains(p.err.String(), "exanetctl emu serve --firmware-options") {
		t.Errorf("pfd with options for a device elsewhere: exit code %d, %s", p.wait(), p.err.String())
	}
	if p := show("capture"); p.wait() != 1 || !strings.Contains(p.err.String(), "exanetctl emu serve --capture FILE") {
		t.Errorf("capture: exit code %d, %s", p.wait(), p.err.String())
	}
	server.signal(syscall.SIGTERM)
	if code := server.wait(); code != 0 {
		t.Errorf("emu serve: exit code %d, %s", code, server.err.String())
	}
	text, err := os.ReadFile(links)
	if err != nil {
		t.Fatal(err)
	}
	payload := 0
	for rest := text; len(rest) > 0; {
		n, block, err := pcapng.Blocks(rest, true)
		if err != nil {
			t.Fatal(err)
		}
		if rest = rest[n:]; pcapng.TypeOf(block) == pcapng.TypePacket {
			payload += len(block)
		}
	}
	if payload < 2<<20 {
		t.Errorf("2 MiB crossed the link, packets of %d bytes were captured", payload)
	}
}
