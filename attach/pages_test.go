package attach

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/exanet/pfd/device"
)

func testPages(t testing.TB) *Pages {
	t.Helper()
	p, err := NewPages(make([]byte, MemorySize))
	if err != nil {
		t.Fatal(err)
	}
	p.reset()
	return p
}

func TestNewPagesRefuses(t *testing.T) {
	b := make([]byte, MemorySize+8)
	for _, tt := range []struct {
		name string
		b    []byte
	}{
		{"nil", nil},
		{"short", b[:MemorySize-1]},
		{"long", b[:MemorySize+1]},
		{"misaligned", b[4 : MemorySize+4]},
	} {
		if _, err := NewPages(tt.b); !errors.Is(err, ErrMemory) {
			t.Errorf("%s: %v, want ErrMemory", tt.name, err)
		}
	}
}

// TestPageLayout restates the layout of docs/attach.md in bytes.
func TestPageLayout(t *testing.T) {
	p := testPages(t)
	b := p.Bytes()
	u32 := func(o int) uint32 { return binary.LittleEndian.Uint32(b[o:]) }
	u64 := func(o int) uint64 { return binary.LittleEndian.Uint64(b[o:]) }

	if u32(31*64+44) != 0xffffffff || u32(32*64+44) != 2 {
		t.Errorf("done at reset: channel 31 %#x, 32 %#x", u32(31*64+44), u32(32*64+44))
	}
	d := device.Descriptor{
		Src: 0x1122334455667788, Dst: 0x7f00aabbccdd, Notify: 0x7f0000000010,
		First: 0xf1, Last: 0x1a57, Size: 0xfffffffe, DstNode: 0x3fabcd, DstPDID: 0xbeef, DstGeneration: 0xa1b2c3d4, Urgent: true,
		Done: 7, Status: 9, Paused: 4, Abort: true,
	}
	p.AskAbort(5)
	p.SetDone(5, 3, 9, 4)
	p.Publish(5, &d)
	const o = 5 * 64
	for _, w := range []struct {
		name string
		off  int
		want uint64
	}{
		{"src", 0, 0x1122334455667788}, {"dst", 8, 0x7f00aabbccdd}, {"notify", 16, 0x7f0000000010},
		{"first", 24, 0xf1}, {"last", 32, 0x1a57},
		{"size, done 0", 40, 0x00000000_fffffffe},
		{"reserved_0: urgent, PDID, node; no abort", 48, 0x4000beef_003fabcd},
		{"reserved_1: generation; no status", 56, 0xa1b2c3d4_00000000},
	} {
		if got := u64(o + w.off); got != w.want {
			t.Errorf("%s: %#x, want %#x", w.name, got, w.want)
		}
	}
	p.AskAbort(5)
	if u64(o+48) != 0x6000beef_003fabcd {
		t.Errorf("abort bit: %#x", u64(o+48))
	}
	var got device.Descriptor
	if p.Descriptor(4, &got); got.Abort {
		t.Error("abort bit of another channel")
	}
	p.Descriptor(5, &got)
	d.Done, d.Status, d.Paused, d.Abort = 0, 0, 0, true
	if got != d {
		t.Errorf("descriptor\n%+v, want\n%+v", got, d)
	}
	p.SetDone(5, 3, 8, 2)
	if u32(o+44) != 3 || u64(o+56) != 0xa1b2c3d4_00000208 {
		t.Errorf("SetDone: done %#x, reserved_1 %#x", u32(o+44), u64(o+56))
	}
	if s, n := p.Status(5); s != 8 || n != 2 || p.Done(5) != 3 {
		t.Errorf("status %d, paused %d, done %d", s, n, p.Done(5))
	}

	if !p.Ring(9) || u64(0x1000) != 10 {
		t.Errorf("doorbell word %d, want channel+1", u64(0x1000))
	}
	if p.Ring(1) {
		t.Error("a second doorbell went over the first")
	}
	if p.TakeDoorbell() != 10 || u64(0x1000) != 0 || p.TakeDoorbell() != 0 {
		t.Error("doorbell not taken once")
	}

	if !p.Send(3, 0x2abcde, 1, 0x11, 0x22) {
		t.Fatal("send refused")
	}
	const k = 0x2000 + 3*0x400
	if u64(k) != 0x012abcde || u64(k+8) != 0x11 || u64(k+16) != 0x22 || u64(k+0x48) != 2 || u64(k+0x50) != 1 {
		t.Error("packetizer channel 3 is not as messages.md 4 has it")
	}
	if p.Send(3, 1, 1, 1) || p.SendStatus(3) != device.PktzBusy {
		t.Error("a busy channel took a message")
	}
	if p.Send(2, 1, 1) || p.Send(2, 1, 1, make([]uint64, 9)...) {
		t.Error("a message of 0 or 9 words was sent")
	}
	m := Message{Words: [8]uint64{7: 99}}
	if !p.TakeSend(3, &m) || m != (Message{Node: 0x2abcde, Mailbox: 1, N: 2, Words: [8]uint64{0x11, 0x22}}) {
		t.Errorf("took %+v", m)
	}
	p.SetPktzStatus(3, device.PktzRefused)
	if u64(k+0x48) != 0 || p.SendStatus(3) != device.PktzRefused || p.TakeSend(3, &m) {
		t.Error("packetizer channel not answered")
	}

	if p.Kick() || u32(0x3004) != 1 || p.Kicks() != 1 {
		t.Error("kick word")
	}
	p.SetAsleep(true)
	if u32(0x3000) != 1 || !p.Kick() {
		t.Error("asleep flag")
	}
	p.SetAsleep(false)
	if p.Kick() {
		t.Error("asleep flag not taken back")
	}
	p.Notify()
	if u32(0x3008) != 1 || p.Event() != 1 {
		t.Error("event word")
	}
	p.AddWaiters(1)
	if u32(0x300c) != 1 {
		t.Error("waiters")
	}
	p.AddWaiters(-1)
	if _, over := p.Ended(); over {
		t.Error("ended at once")
	}
	p.End(ReasonKicked)
	if r, over := p.Ended(); !over || r != ReasonKicked || u32(0x3010) != 1 || u32(0x3014) != 3 || p.Event() != 2 {
		t.Error("end")
	}
}

// TestThreadPages restates the layout of docs/attach.md 12 in bytes, and that no thread's Port reaches
// another's.
func TestThreadPages(t *testing.T) {
	p, err := NewPages(make([]byte, ThreadMemorySize))
	if err != nil || !p.HasThreads() || testPages(t).HasThreads() {
		t.Fatal("memory with threads:", err)
	}
	b := p.Bytes()
	u64 := func(o int) uint64 { return binary.LittleEndian.Uint64(b[o:]) }
	const k = 0x4000 + 0x2000*5
	port := p.Thread(5)
	if !port.Send(1, 3, 4, 0x11) || u64(k+0x400) != 4<<24|3 || u64(k+0x408) != 0x11 {
		t.Error("the packetizer of thread 5 is not as attach.md 12 has it")
	}
	port.Notify()
	port.AddWaiters(2)
	if u64(k+0x1008) != 2<<32|1 {
		t.Errorf("event and waiters %#x", u64(k+0x1008))
	}
	if !port.PutMail(0, &Mail{Source: 7}) || u64(k+0x1100) != 1 || u64(k+0x1140) != 7 {
		t.Error("the mail of thread 5 is not as attach.md 12 has it")
	}
	p.RingThread(5)
	p.RingThread(0)
	if binary.LittleEndian.Uint32(b[0x3064:]) != 0x21 || p.TakeRung() != 0x21 || p.TakeRung() != 0 {
		t.Error("RUNG is not taken once")
	}
	for i := range b {
		if i < k || i >= k+0x2000 {
			if b[i] != 0 {
				t.Fatalf("byte %#x was written", i)
			}
		}
	}
	event0 := port.Event()
	if p.EndThread(5); !port.Ended() || port.Event() == event0 {
		t.Error("a thread that pfd has ended has not")
	}
	p.ResetThread(5)
	event := port.Event()
	for i := k; i < k+0x2000; i += 8 {
		if v := u64(i); v != 0 && (i != k+0x1008 || v>>32 != 2) {
			t.Fatalf("word %#x is %#x after a reset", i, v)
		}
	}
	if event != event0+2 {
		t.Errorf("EVENT is %d after a reset, want a change", event)
	}
}

// TestHostilePages fills the pages with random bytes and calls every method that pfd uses: only
// the returned values may depend on them.
func TestHostilePages(t *testing.T) {
	const guard = 4096
	whole := make([]byte, guard+MemorySize+guard)
	for i := range whole {
		whole[i] = 0xa5
	}
	p, err := NewPages(whole[guard : guard+MemorySize])
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	channels := []int{0, 31, 63, 64, -1, 1 << 40, -1 << 40}
	for round := range 200 {
		b := p.Bytes()
		for i := range b {
			switch round % 4 {
			case 0:
				b[i] = 0xff
			case 1:
				b[i] = byte(r.Uint32())
			case 2:
				b[i] = 0x80
			case 3:
				b[i] = byte(r.Uint32()) & 0xf
			}
		}
		var d device.Descriptor
		var m Message
		for _, ch := range channels {
			p.Descriptor(ch, &d)
			p.SetDone(ch, 3, 9, 255)
			if p.TakeSend(ch, &m) && (m.N < 0 || m.N > device.PktzMaxWords) {
				t.Fatalf("message of %d words", m.N)
			}
			p.SetPktzStatus(ch, 2)
		}
		p.TakeDoorbell()
		p.Kicks()
		p.SetAsleep(true)
		p.Notify()
		p.End(ReasonKicked)
	}
	for i, c := range whole {
		if (i < guard || i >= guard+MemorySize) && c != 0xa5 {
			t.Fatalf("byte %d outside of the pages was written", i-guard)
		}
	}
}

func TestPagesAllocateNothing(t *testing.T) {
	p := testPages(t)
	var d device.Descriptor
	var m Message
	if n := testing.AllocsPerRun(100, func() {
		p.Publish(3, &d)
		p.Ring(3)
		p.Send(1, 2, 1, 42)
		p.Kick()
		p.TakeDoorbell()
		p.TakeSend(1, &m)
		p.SetPktzStatus(1, 0)
		p.Descriptor(3, &d)
		p.SetDone(3, 1, 0, 0)
		p.SetAsleep(false)
		p.Kicks()
		p.Notify()
		p.AddWaiters(1)
		p.Notify() // with the system call
		p.AddWaiters(-1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
