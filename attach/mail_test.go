package attach

import (
	"encoding/binary"
	"runtime"
	"sync"
	"testing"
	"time"
)

// TestMailLayout restates the mailbox of docs/attach.md in bytes.
func TestMailLayout(t *testing.T) {
	p := testPages(t)
	b := p.Bytes()
	if p.HasMail() {
		t.Error("mail at reset")
	}
	m := Mail{Source: 0x0100_0000_1f00_0003, Words: [8]uint64{0x0000_0005_0005_0014, 0x22, 7: 0x99}}
	for i := range uint32(MailSlots) {
		if !p.PutMail(i, &m) {
			t.Fatalf("message %d refused", i)
		}
	}
	if p.PutMail(MailSlots, &m) {
		t.Error("a full ring took a message")
	}
	for _, w := range []struct {
		off  int
		want uint64
	}{
		{0x3100, 32},                    // tail, with head 0 above it
		{0x3140, 0x0100_0000_1f00_0003}, // SOURCE of slot 0
		{0x3148, 0x0000_0005_0005_0014}, // its words
		{0x3150, 0x22},
		{0x3180, 0x99},
		{0x3190, 0x0100_0000_1f00_0003}, // slot 1
		{0x3af0, 0x0100_0000_1f00_0003}, // slot 31
	} {
		if got := binary.LittleEndian.Uint64(b[w.off:]); got != w.want {
			t.Errorf("at %#x: %#x, want %#x", w.off, got, w.want)
		}
	}
	var got Mail
	if ok, full := p.TakeMail(&got); !ok || !full || got != m {
		t.Errorf("took %+v, %v, %v", got, ok, full)
	}
	if ok, full := p.TakeMail(&got); !ok || full {
		t.Error("the ring is full still")
	}
	if binary.LittleEndian.Uint64(b[0x3100:]) != 2<<32|32 {
		t.Errorf("counts %#x", binary.LittleEndian.Uint64(b[0x3100:]))
	}
	if !p.PutMail(32, &m) || binary.LittleEndian.Uint32(b[0x3100:]) != 33 {
		t.Error("slot 0 is not used again")
	}
	// With a hostile head nothing is written and nothing fails.
	binary.LittleEndian.PutUint32(b[0x3104:], 0x8000_0000)
	if p.PutMail(33, &m) {
		t.Error("a head ahead of the tail was believed")
	}
}

// TestServedLayout restates word SERVED of docs/attach.md 3 and 6 in bytes.
func TestServedLayout(t *testing.T) {
	p := testPages(t)
	if p.Served() != 0 {
		t.Errorf("served %d at reset", p.Served())
	}
	p.SetServed(0x2a, 14)
	if got := [4]byte(p.Bytes()[0x3018:]); got != [4]byte{0x2a} {
		t.Errorf("at 0x3018: % x", got)
	}
	if got := [4]byte(p.Bytes()[0x301c:]); got != [4]byte{14} {
		t.Errorf("at 0x301c: % x", got)
	}
	if p.Served() != 0x2a || p.ServedError() != 14 {
		t.Errorf("served %d, errno %d", p.Served(), p.ServedError())
	}
	// The word has changed: it does not sleep (else the test would hang).
	p.WaitServed(0, time.Hour)
}

// TestFaultCountsLayout restates the fault counters of docs/attach.md 3 in bytes.
func TestFaultCountsLayout(t *testing.T) {
	p := testPages(t)
	if c := p.FaultCounts(); c != (FaultCounts{}) {
		t.Errorf("%+v at reset", c)
	}
	want := FaultCounts{Faults: 0x0102030405060708, Pages: 2, Failed: 3, Invalidated: 4, Invalidations: 5, Conflicts: 6}
	p.SetFaultCounts(want)
	bytes := [56]byte{8, 7, 6, 5, 4, 3, 2, 1, 8: 2, 16: 3, 24: 4, 40: 5, 48: 6}
	if got := [56]byte(p.Bytes()[0x3040:]); got != bytes {
		t.Errorf("at 0x3040: % x, want % x", got, bytes)
	}
	if got := p.FaultCounts(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A ring that is full whenever pfd looks: no kick that pfd needs to go on is missing.
func TestMailKicks(t *testing.T) {
	p := testPages(t)
	const messages = 200_000
	var reader sync.WaitGroup
	reader.Go(func() {
		var m Mail
		for i := uint64(0); i < messages; {
			ok, full := p.TakeMail(&m)
			if !ok {
				runtime.Gosched()
				continue
			}
			if full {
				p.Kick()
			}
			if m.Source != i {
				t.Errorf("message %d is %d", i, m.Source)
				return
			}
			i++
		}
	})
	for i, seen := uint32(0), p.Kicks(); i < messages; {
		if p.PutMail(i, &Mail{Source: uint64(i)}) {
			i++
			continue
		}
		for p.Kicks() == seen {
			runtime.Gosched()
		}
		seen = p.Kicks()
	}
	reader.Wait()
}
