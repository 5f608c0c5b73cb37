package packetizer_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
)

type sent struct {
	channel     uint32
	destination uint64
	words       []uint64
}

// page is window pktz with one usable page: interface 17.
type page struct {
	t        *testing.T
	regs     [device.PageSize / 8]uint64
	sent     []sent
	record   bool
	status   uint64 // STATUS after a SEND
	failAt   int    // the access, counted from 1, at which the device disappears
	accesses int
}

const iface = 17

func (p *page) at(offset uint32) uint32 {
	if offset/device.PageSize != iface {
		p.t.Errorf("access of page %d", offset/device.PageSize)
	}
	return offset % device.PageSize
}

func (p *page) gone() error {
	p.accesses++
	if p.accesses == p.failAt {
		return device.ErrGone
	}
	return nil
}

func (p *page) Load(offset uint32, width int) (uint64, error) {
	if width != 8 {
		p.t.Errorf("a read of %d bytes", width)
	}
	return p.regs[p.at(offset)/8], p.gone()
}

func (p *page) Store(offset uint32, width int, v uint64) error {
	if width != 8 {
		p.t.Errorf("a write of %d bytes", width)
	}
	at := p.at(offset)
	if err := p.gone(); err != nil {
		return err
	}
	p.regs[at/8] = v
	if at%device.PktzChannelStride == device.PktzSend {
		ch := at / device.PktzChannelStride
		base := ch * device.PktzChannelStride / 8
		if p.record {
			first := base + device.PktzPayload/8
			p.sent = append(p.sent, sent{ch, p.regs[base], slices.Clone(p.regs[first : first+uint32(v)])})
		}
		p.regs[base+device.PktzStatus/8] = p.status
	}
	return nil
}

func TestPortSends(t *testing.T) {
	p := &page{t: t, record: true}
	port := packetizer.New(device.Window{Access: p}, iface)
	r := mailbox.RAPF{PDID: 1, Transaction: 2, Sequence: 3, Claimed: 1}
	d := mailbox.Doorbell{PDID: 1, Channel: 5}
	for i, f := range []func() error{
		func() error { return port.RAPF(0x2abcde, r) },
		func() error { return port.Send(7, device.MailboxRequest, d.Encode()) },
		func() error { return port.Send(9, 16, 1, 2, 3, 4, 5, 6, 7, 8) },
	} {
		if err := f(); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	want := []sent{
		{0, 0x012abcde, []uint64{r.Encode()}},
		{1, 0x01000007, []uint64{d.Encode()}},
		{2, 0x10000009, []uint64{1, 2, 3, 4, 5, 6, 7, 8}},
	}
	if !slices.EqualFunc(p.sent, want, func(a, b sent) bool {
		return a.channel == b.channel && a.destination == b.destination && slices.Equal(a.words, b.words)
	}) {
		t.Errorf("sent %x, want %x", p.sent, want)
	}
	// Destination, one word, SEND, STATUS: the cost of a fault's RAPF.
	p.accesses = 0
	if err := port.RAPF(1, r); err != nil || p.accesses != 4 {
		t.Errorf("a RAPF took %d accesses, %v", p.accesses, err)
	}
}

func TestPortRefused(t *testing.T) {
	p := &page{t: t, status: device.PktzRefused}
	port := packetizer.New(device.Window{Access: p}, iface)
	if err := port.Send(1, 0, 1); !errors.Is(err, packetizer.ErrRefused) || port.Refused() != 1 {
		t.Errorf("%v, %d", err, port.Refused())
	}
	p.status = device.PktzFree
	for range 8 {
		if err := port.Send(1, 1, 1); err != nil {
			t.Fatalf("after a refusal: %v", err)
		}
	}
}

func TestPortBusy(t *testing.T) {
	p := &page{t: t, status: device.PktzBusy}
	port := packetizer.New(device.Window{Access: p}, iface)
	for i := range device.PktzChannels {
		if err := port.Send(1, 1, 1); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	if err := port.Send(1, 1, 1); !errors.Is(err, packetizer.ErrBusy) {
		t.Fatalf("fifth message: %v", err)
	}
	// The message of channel 2 ends, refused: this is detected, and the channel is reused.
	p.regs[(2*device.PktzChannelStride+device.PktzStatus)/8] = device.PktzRefused
	p.record = true
	if err := port.Send(1, 1, 42); err != nil || len(p.sent) != 1 || p.sent[0].channel != 2 || port.Refused() != 1 {
		t.Errorf("%v, sent %v, refused %d", err, p.sent, port.Refused())
	}
}

func TestPortWords(t *testing.T) {
	p := &page{t: t}
	port := packetizer.New(device.Window{Access: p}, iface)
	for _, words := range [][]uint64{nil, make([]uint64, 9)} {
		if err := port.Send(1, 1, words...); !errors.Is(err, packetizer.ErrWords) {
			t.Errorf("%d words: %v", len(words), err)
		}
	}
	if p.accesses != 0 {
		t.Errorf("%d accesses for messages that cannot be sent", p.accesses)
	}
}

func TestPortGone(t *testing.T) {
	for failAt := 1; failAt <= 4; failAt++ {
		p := &page{t: t, failAt: failAt}
		if err := packetizer.New(device.Window{Access: p}, iface).Send(1, 1, 1); !errors.Is(err, device.ErrGone) {
			t.Errorf("gone at access %d: %v", failAt, err)
		}
	}
	p := &page{t: t, status: device.PktzBusy}
	port := packetizer.New(device.Window{Access: p}, iface)
	for range device.PktzChannels {
		if err := port.Send(1, 1, 1); err != nil {
			t.Fatal(err)
		}
	}
	p.failAt = p.accesses + 1
	if err := port.Send(1, 1, 1); !errors.Is(err, device.ErrGone) {
		t.Errorf("gone while looking for a channel: %v", err)
	}
}

func BenchmarkRAPF(b *testing.B) {
	port := packetizer.New(device.Window{Access: &page{}}, iface)
	r := mailbox.RAPF{PDID: 1, Transaction: 2, Sequence: 3, Claimed: 1}
	b.ReportAllocs()
	for b.Loop() {
		if err := port.RAPF(1, r); err != nil {
			b.Fatal(err)
		}
	}
}

func TestRAPFAllocatesNothing(t *testing.T) {
	port := packetizer.New(device.Window{Access: &page{t: t}}, iface)
	r := mailbox.RAPF{PDID: 1, Transaction: 2, Sequence: 3, Claimed: 1}
	if n := testing.AllocsPerRun(100, func() {
		if err := port.RAPF(1, r); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a RAPF", n)
	}
}
