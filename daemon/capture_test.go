package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/golden"
	"github.com/exanet/pfd/internal/pcapng"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/soc/wire"
)

// tshark reads a capture with the dissector, and returns fields of each packet, "" for a field
// that a packet lacks.
func tshark(t *testing.T, capture []byte, fields ...string) (packets [][]string) {
	t.Helper()
	program, err := exec.LookPath("tshark")
	if err != nil {
		const why = "no tshark: `sh contrib/scripts/setup.sh test` installs it"
		if os.Getenv("STRICT") == "1" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	file := filepath.Join(t.TempDir(), "capture.pcapng")
	if err := os.WriteFile(file, capture, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-X", "lua_script:../contrib/wireshark/exanet.lua", "-r", file, "-T", "fields", "-E", "separator=;"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "LC_ALL=C.UTF-8")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil || strings.Contains(errs.String(), "Lua") || strings.Contains(errs.String(), "lua") {
		t.Fatalf("tshark: %v\n%s", err, errs.Bytes())
	}
	for line := range strings.Lines(string(out)) {
		packets = append(packets, strings.Split(strings.TrimSuffix(line, "\n"), ";"))
	}
	return packets
}

// same reports whether a field has the value of a golden vector.
func same(got, want string) bool {
	if want == "true" || want == "false" {
		want = map[string]string{"true": "1", "false": "0"}[want]
	}
	g, err1 := strconv.ParseUint(got, 0, 64)
	w, err2 := strconv.ParseUint(want, 0, 64)
	return err1 == nil && err2 == nil && g == w
}

// The dissector reads each field of the packets and messages of the specification's
// golden vectors, and finds their CRCs good.
func TestDissectorGolden(t *testing.T) {
	capture := pcapng.Interface(pcapng.Section(nil, "golden"), 0, "golden")
	type check struct{ field, want string }
	var checks [][]check
	add := func(packet []byte, c []check) {
		capture = pcapng.Packet(capture, 0, int64(len(checks)), packet, 0, 0, 0)
		checks = append(checks, append(c, check{"_ws.expert.message", ""}))
	}
	for _, c := range golden.Read(t, "../soc/wire/testdata/packets.txt") {
		var b []byte
		for _, w := range c.Words(t, "word") {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		sum := c.Words(t, "crc")[0]
		b = binary.LittleEndian.AppendUint32(b, uint32(sum))
		list := []check{{"exanet.crc", strconv.FormatUint(sum, 10)}}
		if c.Has("payload") {
			payload := c.Bytes(t, "payload")
			sum := c.Words(t, "paycrc")[0]
			b = binary.LittleEndian.AppendUint32(append(b, payload...), uint32(sum))
			list = append(list, check{"exanet.payload_crc", strconv.FormatUint(sum, 10)}, check{"exanet.payload_length", strconv.Itoa(len(payload))})
		}
		for _, key := range []string{"kind", "last", "words", "epoch", "link", "srcgen", "dstgen", "block", "length", "srcnode", "interface",
			"srcpdid", "id", "code", "dstnode", "mailbox", "dstpdid", "seq", "va", "offset", "remaining", "first"} {
			want := "0"
			if c.Has(key) {
				want = c.Text(t, key)
			}
			list = append(list, check{"exanet." + key, want})
		}
		add(b, list)
	}
	// Messages of the mailboxes' vectors, each in the packet that carries it.
	prefix := map[string]string{"ack": "ack", "rapf": "rapf", "doorbell": "doorbell", "read": "req"}
	mailbox := map[string]uint8{"ack": device.MailboxAck, "rapf": device.MailboxRequest, "doorbell": device.MailboxRequest, "read": device.MailboxRead}
	names := map[string]string{"transaction": "id", "sequence": "seq"}
	for _, c := range golden.Read(t, "../mailbox/testdata/words.txt") {
		kind := c.Text(t, "kind")
		if prefix[kind] == "" {
			continue // what the hardware puts beside a message is no message
		}
		var list []check
		for _, key := range []string{"transaction", "code", "sequence", "pdid", "claimed", "fail", "channel", "tag", "size", "src", "dst", "notify", "first", "last", "target", "generation"} {
			name := key
			if names[key] != "" {
				name = names[key]
			}
			if field := "exanet." + prefix[kind] + "." + name; c.Has(key) {
				if key == "pdid" {
					field = "exanet.msg.pdid"
				}
				list = append(list, check{field, c.Text(t, key)})
			}
		}
		add(message(mailbox[kind], c.Words(t, "words")), list)
	}
	for _, c := range golden.Read(t, "../device/atomics/testdata/messages.txt") {
		var list []check
		words := c.Words(t, "words")
		rest := func(name string, first int) {
			for i, w := range words[min(first, len(words)):] {
				list = append(list, check{fmt.Sprintf("exanet.gsas.%s%d", name, i+1), strconv.FormatUint(w, 10)})
			}
		}
		for _, key := range []string{"thread", "protection", "tag", "op", "address", "number", "status"} {
			if c.Has(key) {
				list = append(list, check{"exanet.gsas." + key, c.Text(t, key)})
			}
		}
		if c.Text(t, "kind") == "request" {
			rest("arg", 2)
			add(message(device.MailboxGSAS, words), list)
			continue
		}
		rest("value", 1)
		p := wire.Packet{Header: wire.Header{Kind: wire.Message, DstNode: 1, DstMailbox: device.MailboxThread}}
		for _, w := range words {
			p.Payload = binary.LittleEndian.AppendUint64(p.Payload, w)
		}
		add(p.AppendTo(nil), list)
	}
	// And one whose payload CRC does not fit.
	bad := message(3, []uint64{1})
	bad[len(bad)-1] ^= 1
	capture = pcapng.Packet(capture, 0, 0, bad, 0, 0, 0)
	checks = append(checks, []check{{"_ws.expert.message", "Wrong CRC"}, {"exanet.msg.word", "1"}})

	var fields []string
	column := map[string]int{}
	for _, list := range checks {
		for _, c := range list {
			if _, ok := column[c.field]; !ok {
				column[c.field] = len(fields)
				fields = append(fields, c.field)
			}
		}
	}
	packets := tshark(t, capture, fields...)
	if len(packets) != len(checks) {
		t.Fatalf("%d packets, want %d", len(packets), len(checks))
	}
	for i, list := range checks {
		for _, c := range list {
			if got := packets[i][column[c.field]]; got != c.want && !same(got, c.want) {
				t.Errorf("packet %d: %s is %q, want %q", i, c.field, got, c.want)
			}
		}
	}
}

// message returns the packet of a message.
func message(mailbox uint8, words []uint64) []byte {
	p := wire.Packet{Header: wire.Header{Kind: wire.Message, SrcPDID: 1, DstNode: 1, DstMailbox: mailbox}}
	for _, w := range words {
		p.Payload = binary.LittleEndian.AppendUint64(p.Payload, w)
	}
	return p.AppendTo(nil)
}

// A capture of a live pfd has the packets of a transfer into absent memory: data, the
// NACK of the fault, the block again, and the acknowledgement.
func TestCapture(t *testing.T) {
	_, client, ctx := startEngine(t)
	p := spawn(t, "target", "PFD_TEST_SOCKET="+client.Socket())
	remote, err := rdma.ParseRemote(p.line())
	if err != nil {
		t.Fatal(err)
	}
	e, err := rdma.Attach(ctx, rdma.Options{Socket: client.Socket(), Group: "exec"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()

	ctx, stop := context.WithCancel(ctx)
	begun := make(chan struct{})
	ended := make(chan error, 1)
	var capture []byte
	go func() {
		ended <- client.Capture(ctx, 1, 0, func(block []byte) error {
			capture = append(capture, block...)
			switch pcapng.TypeOf(block) {
			case pcapng.TypeSection:
				close(begun)
			case pcapng.TypePacket:
				if bytes.Contains(block, []byte("the end")) {
					stop()
				}
			}
			return nil
		})
	}()
	<-begun
	busy := client.Capture(ctx, control.AllNodes, 0, func([]byte) error { return nil })
	if re := (*control.ReplyError)(nil); !errors.As(busy, &re) || re.Code != control.CodeBusy {
		t.Errorf("a second capture: %v", busy)
	}
	write := func(src []byte) {
		t.Helper()
		tr, err := e.Write(ctx, rdma.WriteRequest{Src: src, Dst: remote})
		if err == nil {
			err = tr.Wait(ctx)
		}
		if err != nil {
			t.Error(err)
		}
	}
	write(pattern())
	write(append(pattern()[:1024], "the end"...))
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}

	seen := map[string]int{}
	again := map[string]int{} // how often the first packet of a block of the first transfer came
	for _, f := range tshark(t, capture, "frame.interface_name", "frame.packet_flags_direction", "exanet.kind", "exanet.code", "exanet.block", "exanet.offset", "exanet.remaining", "_ws.expert.message", "frame.time_epoch") {
		name, direction, kind, code, block, offset, remaining, expert := f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7]
		if name != "node1-node0" && name != "node1-node1" || expert != "" {
			t.Fatalf("%q", f)
		}
		seen[kind+"/"+code+"/"+direction]++
		if left, _ := strconv.Atoi(remaining); kind == "1" && offset == "0" && left > 2048 {
			again[block]++
		}
	}
	if seen["1/0/0x00000001"] == 0 || seen["3/1/0x00000002"] == 0 || seen["3/0/0x00000002"] == 0 {
		t.Errorf("by kind, code and direction: %v", seen)
	}
	if len(again) < targetSize/device.BlockSize || again["0"] < 2 {
		t.Errorf("blocks were seen so often: %v", again)
	}
}
