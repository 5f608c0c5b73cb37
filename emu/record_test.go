package emu_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/sim"
	"github.com/exanet/pfd/soc/record"
)

// What a live engine does is had again from its recording.
func TestRecordingIsReplayed(t *testing.T) {
	var file bytes.Buffer
	var w *record.Writer
	r := newRig(t, fault.PI4, func(e *emu.Engine) {
		w = record.NewWriter(&file, e.RecordHeader(), func(err error) { t.Error(err) })
		e.Record(w)
	})
	src, dst := absent(t, 1<<20), absent(t, 1<<20)
	for i := range src[:1<<19] {
		src[i] = byte(i)
	}
	for i, size := range []uint32{1, 4096, 16385, 1 << 20} {
		if done := r.write(i, device.Descriptor{Src: va(src), Dst: va(dst), Size: size, DstNode: 1}); done != device.DoneCompleted {
			t.Fatalf("%d bytes: done %d", size, done)
		}
	}
	// One that fails, and a channel that does not exist.
	if done := r.write(5, device.Descriptor{Src: va(src), Dst: 0x1000, Size: 4096, DstNode: 1}); done != device.DoneFailed {
		t.Fatalf("into nothing: done %d", done)
	}
	var recorded []byte
	var digest record.Digest
	var count uint64
	var counters [2][device.Counters]uint64
	r.on(0, func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		recorded = bytes.Clone(file.Bytes())
		digest, count = w.Digest()
		for i := range counters {
			for c := range counters[i] {
				counters[i][c] = r.engine.Node(i).Count(device.Counter(c))
			}
		}
	})
	got, err := sim.Replay(bytes.NewReader(recorded))
	if err != nil {
		t.Fatalf("%v; %+v", err, got)
	}
	if got.Digest != digest || got.Records != count || got.Checked != count || got.Header.Nodes != 2 || !got.Header.SVA {
		t.Errorf("replayed %+v, want digest %#x of %d records", got, digest, count)
	}
	for i := range counters {
		if got.Counters[i] != counters[i] {
			t.Errorf("counters of node %d\n got %v\nwant %v", i, got.Counters[i], counters[i])
		}
	}
	if got.Kinds[record.DoorbellRung] == 0 || got.Kinds[record.Store] == 0 || got.Kinds[record.Load] == 0 || got.Kinds[record.Moved] == 0 || got.Frames == 0 {
		t.Errorf("kinds %v", got.Kinds)
	}
	t.Logf("%d records, %d bytes, %.1f a record", count, len(recorded), float64(len(recorded))/float64(count))

	// A recording that was cut is replayed as far as it goes.
	if cut, err := sim.Replay(bytes.NewReader(recorded[:len(recorded)-20])); !errors.Is(err, record.ErrTruncated) || cut.Records == 0 {
		t.Errorf("a cut recording: %d records, %v", cut.Records, err)
	}
	// Machines that began otherwise are noticed.
	other := bytes.Clone(recorded)
	other[16]++ // the epoch
	if _, err := sim.Replay(bytes.NewReader(other)); !errors.Is(err, sim.ErrDiverged) {
		t.Errorf("another epoch: %v", err)
	}
}
