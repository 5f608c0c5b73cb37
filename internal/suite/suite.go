package suite

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"golang.org/x/sys/unix"
)

// New returns a fresh machine of two nodes. If bare, it has no TXFIFO.
type New func(t *testing.T, bare bool) Machine

// Run runs the whole suite.
func Run(t *testing.T, machine New) {
	for _, policy := range []fault.Policy{fault.PIO, fault.PI4, fault.PIA, fault.Adaptive} {
		t.Run(fmt.Sprintf("sizes/%v", policy), func(t *testing.T) { sizes(t, NewRig(t, machine(t, false), policy, false)) })
	}
	t.Run("misaligned", func(t *testing.T) { misaligned(t, NewRig(t, machine(t, false), fault.PI4, false)) })
	t.Run("source by time-out", func(t *testing.T) { bySourceTimeout(t, NewRig(t, machine(t, true), fault.PIO, true)) })
	t.Run("unresolvable", func(t *testing.T) { unresolvable(t, NewRig(t, machine(t, false), fault.PIA, false)) })
	t.Run("bad descriptors", func(t *testing.T) { badDescriptors(t, NewRig(t, machine(t, false), fault.PIO, false)) })
	t.Run("zero page", func(t *testing.T) { zeroPage(t, NewRig(t, machine(t, false), fault.PIO, false)) })
	t.Run("many at once", func(t *testing.T) { manyAtOnce(t, NewRig(t, machine(t, false), fault.PIA, false)) })
	t.Run("completion words", func(t *testing.T) { completionWords(t, NewRig(t, machine(t, false), fault.PIO, false)) })
	t.Run("waiting", func(t *testing.T) { waiting(t, NewRig(t, machine(t, false), fault.PIO, false)) })
	t.Run("touch", func(t *testing.T) {
		t.Run("source by time-out", func(t *testing.T) {
			r := NewRig(t, machine(t, true), fault.PIO, true)
			r.Touch(fault.PIO)
			bySourceTimeout(t, r)
		})
		t.Run("sizes", func(t *testing.T) { sizes(t, touched(t, machine(t, false), fault.PI4)) })
		t.Run("misaligned", func(t *testing.T) { misaligned(t, touched(t, machine(t, false), fault.PIO)) })
		t.Run("unresolvable", func(t *testing.T) { unresolvable(t, touched(t, machine(t, false), fault.PIA)) })
		t.Run("zero page", func(t *testing.T) { zeroPage(t, touched(t, machine(t, false), fault.PIO)) })
		t.Run("many at once", func(t *testing.T) { manyAtOnce(t, touched(t, machine(t, false), fault.PIA)) })
		t.Run("completion words", func(t *testing.T) { completionWords(t, touched(t, machine(t, false), fault.PIO)) })
	})
}

// absences select the pages of a buffer that are absent before a transfer.
var absences = map[string]func(page int) bool{
	"present":     func(int) bool { return false },
	"all absent":  func(int) bool { return true },
	"every other": func(p int) bool { return p%2 == 1 },
}

// pattern fills b with bytes that differ from those of other transfers.
func pattern(b []byte, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	for i := 0; i < len(b); i += 8 {
		v := rng.Uint64()
		for j := i; j < min(i+8, len(b)); j++ {
			b[j] = byte(v >> (8 * (j - i)))
		}
	}
}

// vary makes the chosen pages of b absent and the others present and writable. It returns the
// content of b, because reading an absent page would make it present.
func (r *Rig) vary(t testing.TB, b []byte, absent func(int) bool) []byte {
	t.Helper()
	content := bytes.Clone(b)
	for from := 0; from < len(b); from += device.PageSize {
		to := min(from+device.PageSize, len(b))
		if absent(from / device.PageSize) {
			r.Drop(t, b[from:to])
			clear(content[from:to])
		} else {
			b[from] = content[from]
			r.Present(t, b[from:to])
		}
	}
	return content
}

// one performs and checks one write within larger buffers; content is the content of the
// source.
func (r *Rig) one(t testing.TB, src, content, dst []byte, from, to, size int, seed uint64) {
	t.Helper()
	want := content[from : from+size]
	d := device.Descriptor{Src: VA(src) + device.VA(from), Dst: VA(dst) + device.VA(to), Size: uint32(size), DstNode: 1}
	if done, status := r.Write(int(seed)%device.WriteChannels, d); done != device.DoneCompleted {
		t.Fatalf("%d bytes from +%d to +%d: done %d, status %d", size, from, to, done, status)
	}
	if !bytes.Equal(dst[to:to+size], want) {
		t.Fatalf("%d bytes from +%d to +%d: other bytes than the source's", size, from, to)
	}
	for i, b := range dst[:to] {
		if b != 0 {
			t.Fatalf("%d bytes to +%d: byte %d before it was written", size, to, i)
		}
	}
	for i, b := range dst[to+size:] {
		if b != 0 {
			t.Fatalf("%d bytes to +%d: byte %d after it was written", size, to, i)
		}
	}
}

func sizes(t *testing.T, r *Rig) {
	seed := uint64(0)
	for _, size := range []int{1, 15, 16, 4095, 4096, 4097, 16383, 16384, 16385, 64 << 10, 1 << 20, 4 << 20} {
		room := (size+device.PageSize-1)&^(device.PageSize-1) + device.PageSize
		src, dst := r.Map(t, room), r.Map(t, room)
		for _, states := range [][2]string{
			{"present", "present"}, {"present", "all absent"}, {"all absent", "present"}, {"all absent", "all absent"}, {"every other", "every other"},
		} {
			srcName, dstName := states[0], states[1]
			if size > 1<<20 && srcName != dstName {
				continue
			}
			seed++
			srcAbsent, dstAbsent := absences[srcName], absences[dstName]
			pattern(src, seed)
			r.Drop(t, dst)
			content := r.vary(t, src, srcAbsent)
			r.vary(t, dst, dstAbsent)
			before, source := r.Count(1, device.FIFOPush), r.Count(0, device.FIFOPush)
			r.one(t, src, content, dst, 0, 0, size, seed)
			faulted := r.Count(1, device.FIFOPush) > before
			if want := dstName == "all absent" || dstName == "every other" && size > device.PageSize; faulted != want {
				t.Fatalf("%d bytes, source %s, destination %s: destination faults: %v", size, srcName, dstName, faulted)
			}
			faulted = r.Count(0, device.FIFOPush) > source
			if want := srcName == "all absent" || srcName == "every other" && size > device.PageSize; faulted != want {
				t.Fatalf("%d bytes, source %s, destination %s: source faults: %v", size, srcName, dstName, faulted)
			}
		}
	}
}

func misaligned(t *testing.T, r *Rig) {
	const room = 96 << 10
	src, dst := r.Map(t, room), r.Map(t, room)
	offsets := []int{0, 1, 7, 8, 255, 256, 257, 2048, 4095, 4096, 4097, 8191, 12289, 16383, 16384, 16385}
	seed := uint64(1000)
	for i, from := range offsets {
		// Try all offsets at either end, each with a few offsets of the other end.
		for _, to := range []int{offsets[i], offsets[(i+3)%len(offsets)], offsets[(i+7)%len(offsets)]} {
			for _, size := range []int{1, 300, 4096, 16385, 40000} {
				seed++
				pattern(src, seed)
				r.Drop(t, dst)
				content := r.vary(t, src, func(p int) bool { return (p+int(seed))%3 == 0 })
				r.one(t, src, content, dst, from, to, size, seed)
			}
		}
	}
}

func bySourceTimeout(t *testing.T, r *Rig) {
	src, dst := r.Map(t, 64<<10), r.Map(t, 64<<10)
	pattern(src, 7)
	content := r.vary(t, src, func(p int) bool { return p < 4 })
	r.one(t, src, content, dst, 100, 0, 60<<10, 1)
	if r.Count(0, device.Timeouts) == 0 {
		t.Error("a source fault without a TXFIFO did not take a time-out")
	}
}

func unresolvable(t *testing.T, r *Rig) {
	src := r.Map(t, 256<<10)
	pattern(src, 3)
	good, other := r.Map(t, 256<<10), r.Map(t, 256<<10)
	readonly := r.Map(t, 64<<10)
	readonly[20000] = 1
	r.ReadOnly(t, readonly)
	hole := r.Map(t, 64<<10)
	r.Cut(t, hole, 32<<10)
	// No mapping is placed here by itself. The runtime may reuse addresses that were unmapped.
	const goneVA = device.VA(0x6000_0000_0000)
	big := device.Descriptor{Src: VA(src), Dst: VA(good), Size: 256 << 10, DstNode: 1}
	for name, d := range map[string]device.Descriptor{
		"read-only destination": {Src: VA(src), Dst: VA(readonly), Size: 64 << 10, DstNode: 1},
		"hole in destination":   {Src: VA(src), Dst: VA(hole), Size: 64 << 10, DstNode: 1},
		"unmapped destination":  {Src: VA(src), Dst: goneVA, Size: 4096, DstNode: 1},
		"unmapped source":       {Src: goneVA, Dst: VA(other), Size: 4096, DstNode: 1},
		"unmapped notification": {Src: VA(src), Dst: VA(other), Size: 4096, DstNode: 1, Notify: goneVA},
	} {
		r.Drop(t, good)
		r.Start(1, big)
		r.Start(2, d)
		if done, status := r.Wait(2); done != device.DoneFailed || status != device.StatusDecode {
			t.Errorf("%s: done %d, status %d; want 3 with status 2", name, done, status)
		}
		if done, status := r.Wait(1); done != device.DoneCompleted {
			t.Errorf("%s: the good transfer beside it: done %d, status %d", name, done, status)
		}
		if !bytes.Equal(good, src) {
			t.Errorf("%s: the good transfer beside it has other bytes", name)
		}
	}
	if readonly[20000] != 1 || readonly[0] != 0 {
		t.Error("read-only memory was changed")
	}
}

func badDescriptors(t *testing.T, r *Rig) {
	b := r.Map(t, 8192)
	top := device.VA(1) << device.MaxVABits
	for name, d := range map[string]device.Descriptor{
		"size 0":                      {Src: VA(b), Dst: VA(b), Size: 0, DstNode: 1},
		"destination past the width":  {Src: VA(b), Dst: top - 4096, Size: 4097, DstNode: 1},
		"source past the width":       {Src: top, Dst: VA(b), Size: 1, DstNode: 1},
		"source that wraps":           {Src: ^device.VA(0), Dst: VA(b), Size: 2, DstNode: 1},
		"notification past the width": {Src: VA(b), Dst: VA(b), Size: 1, Notify: top - 8, DstNode: 1},
		"notification not aligned":    {Src: VA(b), Dst: VA(b), Size: 1, Notify: VA(b) + 8, DstNode: 1},
		"node without a route":        {Src: VA(b), Dst: VA(b), Size: 1, DstNode: 77},
	} {
		if done, status := r.Write(3, d); done != device.DoneFailed || status != device.StatusDecode {
			t.Errorf("%s: done %d, status %d; want 3 with status 2", name, done, status)
		}
	}
	if done, status := r.Write(3, device.Descriptor{Src: VA(b), Dst: VA(b), Size: 1, DstNode: 1, DstPDID: 0xfffe}); done != device.DoneFailed || status != device.StatusDomain {
		t.Errorf("an unused PDID: done %d, status %d; want 3 with status 5", done, status)
	}
}

// zeroPage writes to pages that the process has only read: the zero page is mapped there, and
// the write is a permission fault that a page-in resolves.
func zeroPage(t *testing.T, r *Rig) {
	if r.shadow != nil {
		t.Skip("shadow translation: memory is shared, and shared memory has no zero page")
	}
	src, dst := r.Map(t, 4096), r.Map(t, 4096)
	pattern(src, 9)
	if err := unix.Madvise(dst, unix.MADV_POPULATE_READ); err != nil {
		t.Fatal(err)
	}
	before := r.Count(1, device.FaultPF)
	r.one(t, src, src, dst, 0, 0, 4096, 1)
	if got := r.Count(1, device.FaultPF) - before; got != 1 {
		t.Errorf("%d permission faults, want 1", got)
	}
}

func manyAtOnce(t *testing.T, r *Rig) {
	const size = 100_000
	var src, dst, content [device.WriteChannels][]byte
	for ch := range src {
		src[ch], dst[ch] = r.Map(t, 128<<10), r.Map(t, 128<<10)
		pattern(src[ch], uint64(ch))
		content[ch] = r.vary(t, src[ch], absences["every other"])
	}
	for ch := range src {
		r.Start(ch, device.Descriptor{Src: VA(src[ch]) + device.VA(ch), Dst: VA(dst[ch]) + device.VA(3*ch), Size: size, DstNode: 1})
	}
	for ch := range src {
		if done, status := r.Wait(ch); done != device.DoneCompleted {
			t.Fatalf("channel %d: done %d, status %d", ch, done, status)
		}
		if !bytes.Equal(dst[ch][3*ch:3*ch+size], content[ch][ch:ch+size]) {
			t.Errorf("channel %d: other bytes than the source's", ch)
		}
	}
}

func completionWords(t *testing.T, r *Rig) {
	for _, size := range []int{1, 4096, 16384, 50000, 300000} {
		src, dst, note := r.Map(t, size), r.Map(t, size), r.Map(t, 4096)
		pattern(src, uint64(size))
		d := device.Descriptor{Src: VA(src), Dst: VA(dst), Size: uint32(size), DstNode: 1, Notify: VA(note) + 32, First: 11, Last: 22}
		if done, status := r.Write(0, d); done != device.DoneCompleted {
			t.Fatalf("%d bytes: done %d, status %d", size, done, status)
		}
		if note[32] != 11 || note[40] != 22 {
			t.Errorf("%d bytes: completion words %d and %d", size, note[32], note[40])
		}
		if !bytes.Equal(src, dst) {
			t.Errorf("%d bytes: wrong bytes", size)
		}
	}
}

// waiting tests that a target can sleep until its completion words are written: only their
// write wakes it, and it does not poll.
func waiting(t *testing.T, r *Rig) {
	src, dst, note := r.Map(t, 4096), r.Map(t, 4096), r.Map(t, 4096)
	p := r.sides[1].mem.Pages
	word := func() uint64 { return binary.LittleEndian.Uint64(note[8:]) }
	for i := range uint64(20) {
		woken := make(chan error, 1)
		p.AddWaiters(1)
		old := p.Event()
		go func() {
			defer p.AddWaiters(-1)
			for deadline := time.Now().Add(20 * time.Second); ; old = p.Event() {
				for p.Event() == old {
					if time.Now().After(deadline) {
						woken <- fmt.Errorf("the target is not woken; the word is %d", word())
						return
					}
					if err := p.WaitEvent(old, time.Second); err != nil {
						woken <- err
						return
					}
				}
				if word() == i+1 {
					woken <- nil
					return
				}
			}
		}()
		d := device.Descriptor{Src: VA(src), Dst: VA(dst), Size: 4096, DstNode: 1, Notify: VA(note), First: i, Last: i + 1}
		if done, status := r.Write(0, d); done != device.DoneCompleted {
			t.Fatalf("done %d, status %d", done, status)
		}
		if err := <-woken; err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
	}
	old := p.Event()
	p.AddWaiters(1)
	for range 20 {
		r.Write(0, device.Descriptor{Src: VA(src), Dst: VA(dst), Size: 4096, DstNode: 1})
	}
	p.AddWaiters(-1)
	if n := p.Event() - old; n != 0 {
		t.Errorf("writes without completion words wake the target %d times", n)
	}
}
