package record

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/wire"
)

var errDisk = errors.New("no space left on device")

// The header, encoded by hand: docs/record.md, "Header".
const headerHex = "6578616e7265630a" + // "exanrec\n"
	"0600" + "0200" + "0200" + "3000" + // version 6, SVA, 2 nodes, 48 bits
	"78563412" + "1200" + "0000" + // epoch 0x12345678, without bypass and retransmission bit, zero
	"0807060504030201" + // started
	"04030000" + // node 0 has id 0x304
	"00000000000000000000000000000000000000000000000000000000"

// A frame of another host: the header is that of a packet (docs/spec/messages.md 5), whose golden vectors
// are those of soc/wire.
var admitted = wire.Frame{
	Header:  wire.Header{Kind: wire.Data, Epoch: 9, Link: 8, SrcNode: 0x1003, SrcPDID: 7, DstNode: 0x305, DstPDID: 7, ID: 5, Seq: 6, First: 6, Length: 300, VA: 0x7f00, Remaining: 300, Last: true},
	Present: 3, HasWords: true, Completion: wire.Completion{VA: 0x80, First: 1, Last: 2}, MessageLen: 1, Message: [device.PktzMaxWords]uint64{0xaa},
}

var admitHex = hex.EncodeToString((&wire.Packet{Header: admitted.Header}).AppendTo(nil)) + "ac02" + "03" + "00" + "00" + "01" + "8001" + "01" + "02" + "01" + "aa01"

// Records, encoded by hand: docs/record.md, "Records".
var records = []struct {
	hex string
	rec Record
}{
	{"01" + "00" + "c801", Record{Kind: Tick, At: 100, Event: soc.Event{Kind: soc.Tick}}},
	{"03" + "01" + "0a" + "07" + "01" + "ff01" + "04" + "8001", Record{Kind: Walked, Node: 1, At: 105, Event: soc.Event{Kind: soc.Walked, Access: 7, Absent: 1, Denied: 0xff, Unused: 4, External: 128}}},
	{"04" + "01" + "00" + "8001" + "01", Record{Kind: Moved, Node: 1, At: 105, Event: soc.Event{Kind: soc.Moved, Access: 128, OK: true}}},
	{"04" + "01" + "00" + "8001" + "00" + "8840", Record{Kind: Moved, Node: 1, At: 105, Event: soc.Event{Kind: soc.Moved, Access: 128, Bytes: 8200}}},
	{"02" + "00" + "00" + "0a", Record{Kind: FrameArrived, At: 105, Frame: 5, Event: soc.Event{Kind: soc.FrameArrived}}},
	{"02" + "00" + "00" + "07", Record{Kind: FrameArrived, At: 105, Frame: 2, Event: soc.Event{Kind: soc.FrameArrived}}},
	{"05" + "00" + "02" + "0f" + "3f" + "0102030405060708", Record{Kind: DoorbellRung, At: 106, Event: soc.Event{Kind: soc.DoorbellRung, Slot: 15, Channel: 63, Words: [8]uint64{1, 2, 3, 4, 5, 6, 7, 8}}}},
	{"06" + "00" + "00" + "00" + "41" + "0000000000000080" + "01", Record{Kind: DescriptorCopied, At: 106, Event: soc.Event{Kind: soc.DescriptorCopied, Channel: 65, Words: [8]uint64{7: 128}}}},
	{"07" + "00" + "00" + "10" + "03" + "81808008" + "01" + "ac02" + "aa01" + "00000000000000", Record{Kind: MessageSent, At: 106, Event: soc.Event{Kind: soc.MessageSent, Interface: 16, Channel: 3, Destination: 1<<24 | 1, N: 1, Number: 300, Words: [8]uint64{170}}}},
	{"08" + "01" + "00" + "8101" + "01" + "03" + "0180ff", Record{Kind: QueueAccessed, Node: 1, At: 106, Data: []byte{1, 128, 255}, Event: soc.Event{Kind: soc.QueueAccessed, Access: 129, OK: true}}},
	{"08" + "01" + "00" + "8201" + "00" + "00", Record{Kind: QueueAccessed, Node: 1, At: 106, Event: soc.Event{Kind: soc.QueueAccessed, Access: 130}}},
	{"09" + "01" + "00" + "8101" + "00" + "02" + "07" + "8001", Record{Kind: AtomicDone, Node: 1, At: 106, Event: soc.Event{Kind: soc.AtomicDone, Access: 129, N: 2, Words: [device.DescriptorWords]uint64{7, 128}}}},
	{"09" + "01" + "00" + "8201" + "05" + "00", Record{Kind: AtomicDone, Node: 1, At: 106, Event: soc.Event{Kind: soc.AtomicDone, Access: 130, Status: atomics.Denied}}},
	{"0a" + "01" + "00" + "8320" + "02", Record{Kind: LinkReady, Node: 1, At: 106, Event: soc.Event{Kind: soc.LinkReady, Destination: 0x1003, Ready: wire.ReadyAll}}},
	{"0b" + "01" + "00" + "8320" + "00", Record{Kind: NodeGone, Node: 1, At: 106, Event: soc.Event{Kind: soc.NodeGone, Destination: 0x1003}}},
	{"0c" + "01" + "00" + "8320" + "01", Record{Kind: NodeDrains, Node: 1, At: 106, Event: soc.Event{Kind: soc.NodeDrains, Destination: 0x1003, OK: true}}},
	{"0d" + "01" + "00" + "8320" + "00", Record{Kind: LinkUp, Node: 1, At: 106, Event: soc.Event{Kind: soc.LinkUp, Destination: 0x1003}}},
	{"24" + "8320" + "01", Record{Kind: Route, At: 106, Event: soc.Event{Destination: 0x1003, OK: true}}},
	{"23" + "01" + "00" + admitHex, Record{Kind: Admit, Node: 1, At: 106, Outside: admitted, Payload: 300, Event: soc.Event{Kind: soc.FrameArrived}}},
	{"20" + "01" + "00" + "8020" + "04", Record{Kind: Load, Node: 1, At: 106, Window: device.PL, Offset: 0x1000, Width: 4}},
	{"21" + "00" + "04" + "01" + "58" + "08" + "ff01", Record{Kind: Store, At: 108, Window: device.SMMU, Offset: 0x58, Width: 8, Value: 255}},
	{"22" + "01" + "02" + "3f", Record{Kind: Take, Node: 1, At: 109, Mailbox: 63}},
	{"3e" + "0a" + "efcdab8967452301", Record{Kind: Check, Count: 10, Digest: 0x0123456789abcdef}},
	{"3f" + "0a" + "0000000000000080", Record{Kind: End, Count: 10, Digest: 1 << 63}},
}

func bytesOf(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGolden(t *testing.T) {
	h := Header{Nodes: 2, Base: 0x304, VABits: 48, SVA: true, Epoch: 0x12345678, Firmware: r5.Options{NoBypass: true, NoRetransmissionBit: true}, Started: 0x0102030405060708}
	all := bytesOf(t, headerHex)
	if got := AppendHeader(nil, h); !bytes.Equal(got, all) {
		t.Errorf("header\n got %x\nwant %x", got, all)
	}
	var s state
	for _, r := range records {
		want := bytesOf(t, r.hex)
		rec := r.rec
		if got := s.appendRecord(nil, &rec); !bytes.Equal(got, want) {
			t.Errorf("%+v\n got %x\nwant %x", r.rec, got, want)
		}
		all = append(all, want...)
	}
	rd, err := NewReader(bytes.NewReader(all))
	if err != nil || rd.Header() != h {
		t.Fatalf("%+v, %v", rd, err)
	}
	for _, r := range records {
		var got Record
		if err := rd.Next(&got); err != nil || !reflect.DeepEqual(got, r.rec) {
			t.Errorf("%s\n got %+v, %v\nwant %+v", r.hex, got, err, r.rec)
		}
	}
	var rec Record
	if err := rd.Next(&rec); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestBroken(t *testing.T) {
	head := bytesOf(t, headerHex)
	changed := func(i int, v byte) []byte {
		b := bytes.Clone(head)
		b[i] = v
		return b
	}
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"empty":                    {nil, ErrFormat},
		"short":                    {head[:63], ErrFormat},
		"another file":             {changed(0, 'E'), ErrFormat},
		"another version":          {changed(8, 7), ErrVersion},
		"former version":           {changed(8, 5), ErrVersion},
		"unknown option":           {changed(20, 64), ErrFormat},
		"unknown flag":             {changed(10, 64), ErrFormat},
		"no node":                  {changed(12, 0), ErrFormat},
		"many nodes":               {changed(12, 65), ErrFormat},
		"narrow":                   {changed(14, 38), ErrFormat},
		"reserved":                 {changed(63, 1), ErrFormat},
		"ids of 23 bits":           {changed(34, 0x40), ErrFormat},
		"header of a frame":        {append(append(bytes.Clone(head), 0x23, 0, 0), make([]byte, 80)...), ErrFormat},
		"reserved, early":          {changed(22, 1), ErrFormat},
		"no end":                   {head, ErrTruncated},
		"cut":                      {append(bytes.Clone(head), 1, 0), ErrTruncated},
		"unknown kind":             {append(bytes.Clone(head), 14, 0, 0), ErrFormat},
		"node that does not exist": {append(bytes.Clone(head), 1, 2, 0), ErrFormat},
		"wrong width":              {append(bytes.Clone(head), 0x20, 0, 0, 0, 5), ErrFormat},
		"window":                   {append(bytes.Clone(head), 0x20, 0, 5, 0, 4), ErrFormat},
		"too long a number":        {append(bytes.Clone(head), 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1), ErrFormat},
		"too long a read":          {append(bytes.Clone(head), 8, 0, 0, 1, 1, 0x81, 4), ErrFormat},
		"mailbox":                  {append(bytes.Clone(head), 0x22, 0, 0, 64), ErrFormat},
		"data after the end":       {append(bytes.Clone(head), 0x3f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1), ErrFormat},
	} {
		rd, err := NewReader(bytes.NewReader(c.b))
		var rec Record
		for err == nil {
			err = rd.Next(&rec)
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// full is a file on a full disk.
type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if len(p) > f.room {
		return 0, errDisk
	}
	f.room -= len(p)
	return len(p), nil
}

// A recording on a full disk reports the error once and then does nothing.
func TestDiskFull(t *testing.T) {
	failed := 0
	w := NewWriter(&full{room: 40 << 10}, Header{Nodes: 1, VABits: 48}, func(err error) {
		failed++
		if !errors.Is(err, errDisk) {
			t.Errorf("failed with %v", err)
		}
	})
	f := new(wire.Frame)
	for i := range 100000 {
		w.Step(int64(i), 0, &soc.Event{Kind: soc.Tick}, []soc.Action{{Kind: soc.Transmit, Frame: f}})
		w.Load(0, device.PL, 0, 4, 1)
		w.Store(int64(i), 0, device.PL, 0, 4, 1, nil)
	}
	if err := w.Close(); failed != 1 || !errors.Is(err, errDisk) {
		t.Errorf("failed %d times, Close returned %v", failed, err)
	}
}

// Checks occur regularly, and reads of memory are omitted.
func TestChecks(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out, Header{Nodes: 1, VABits: 48}, nil)
	for i := range 3 * checkEvery {
		w.Step(int64(i)*1e6, 0, &soc.Event{Kind: soc.Tick}, nil)
		w.Load(0, device.BTCM, 0, 8, 1)
		if i == 1500 && out.Len() == 0 {
			t.Error("the file is empty after a second")
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	rd, err := NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[Kind]int{}
	for {
		var r Record
		if err := rd.Next(&r); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
		kinds[r.Kind]++
	}
	if kinds[Tick] != 3*checkEvery || kinds[Check] != 2 || kinds[End] != 1 || len(kinds) != 3 {
		t.Errorf("kinds %v", kinds)
	}
}

// FuzzReader: records that can be read are the same after they are written and read again.
func FuzzReader(f *testing.F) {
	all := bytesOf(f, headerHex)
	for _, r := range records {
		all = append(all, bytesOf(f, r.hex)...)
		f.Add(bytes.Clone(all))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := DecodeHeader(b); err == nil {
			again := AppendHeader(nil, h)
			again[8] = b[8] // it writes the current version
			if !bytes.Equal(again, b[:headerSize]) {
				t.Errorf("header %x of %+v", b[:headerSize], h)
			}
		}
		rd, err := NewReader(bytes.NewReader(b))
		if err != nil {
			return
		}
		var s, back state
		for {
			var r, again Record
			if err := rd.Next(&r); err != nil {
				return
			}
			line := s.appendRecord(nil, &r)
			if err := back.decodeRecord(bytes.NewReader(line[1:]), line[0], rd.h.Nodes, &again); err != nil || !reflect.DeepEqual(r, again) {
				t.Fatalf("%+v is read back as %+v, %v", r, again, err)
			}
		}
	})
}
