package memport

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space/proc"
)

const most = ^uint64(0)

// TestLies has a row for each lie of a helper about one request: the result is never more than
// was asked for.
func TestLies(t *testing.T) {
	f := newFake(t)
	const va = device.VA(0x7000)
	room := bytes.Repeat([]byte{0xee}, 300)
	read := [][]byte{room[100:140], room[200:260]} // 100 bytes in all
	for _, tt := range []struct {
		name                       string
		ask                        func(r *Request)
		code, count, first, second uint64
		check                      func(r *Request) bool
	}{
		{"walk, all bits", func(r *Request) { r.AskWalk(va, 3, true) }, 0, most, most, most,
			func(r *Request) bool { return r.Err == nil && r.Walk == proc.Walk{Absent: 7} }},
		{"walk, denied and absent", func(r *Request) { r.AskWalk(va, 64, true) }, 0, 0, 1, most,
			func(r *Request) bool { return r.Err == nil && r.Walk == proc.Walk{Absent: 1, Denied: most &^ 1} }},
		{"walk, unknown code", func(r *Request) { r.AskWalk(va, 3, true) }, 0xfffffffe_00000000, 0, 0, 0,
			func(r *Request) bool { return errors.Is(r.Err, ErrHelper) && r.Err.Error() != "" }},
		{"read more", func(r *Request) { r.AskMove(read, va, false, false) }, 0, most, 0, 0,
			func(r *Request) bool { return r.Err == nil && r.Moved == 100 }},
		{"read less, and no error", func(r *Request) { r.AskMove(read, va, false, false) }, 0, 99, 0, 0,
			func(r *Request) bool { return errors.Is(r.Err, proc.ErrInaccessible) && r.Moved == 99 }},
		{"read all, and an error", func(r *Request) { r.AskMove(read, va, false, false) }, 1, 100, 0, 0,
			func(r *Request) bool { return errors.Is(r.Err, proc.ErrGone) }},
		{"wrote more", func(r *Request) { r.AskMove(read, va, true, false) }, 0, 1 << 63, 0, 0,
			func(r *Request) bool { return r.Err == nil && r.Moved == 100 }},
		{"two words, more", func(r *Request) { r.AskMove([][]byte{room[:16]}, va, true, true) }, 0, most, 0, 0,
			func(r *Request) bool { return r.Err == nil && r.Moved == 16 }},
		{"page-in, all bits and a kind", func(r *Request) { r.AskPageIn(va, 2, true) }, 0, most, most, most,
			func(r *Request) bool {
				return r.PageIn == gup.Result{Resident: 3, New: 3, There: true, Kind: gup.Kinds - 1}
			}},
		{"page-in, new and there before, and not resident", func(r *Request) { r.AskPageIn(va, 2, true) }, 1, countThere, 2, most,
			func(r *Request) bool {
				return r.PageIn.Resident == 2 && r.PageIn.New == 2 && !r.PageIn.There && errors.Is(r.PageIn.Err, proc.ErrGone)
			}},
		{"page-in, nothing, and no error", func(r *Request) { r.AskPageIn(va, 2, true) }, 0, 0, 2, 0,
			func(r *Request) bool {
				return r.PageIn.Resident == 2 && errors.Is(r.PageIn.Err, gup.ErrNotResident)
			}},
		{"touch, all bits and a kind", func(r *Request) { r.AskTouch(va, 3, true) }, 1, most, most, most,
			func(r *Request) bool { return r.PageIn == gup.Result{Kind: gup.Kinds - 1} }},
		{"page-in, there, and an error", func(r *Request) { r.AskPageIn(va, 2, true) }, 1, 0, 1, 0,
			func(r *Request) bool { return r.PageIn.Resident == 1 && r.PageIn.Err == nil }},
	} {
		var r Request
		tt.ask(&r)
		done := submit(t, f.Port, &r)
		for i := range f.m.data(0, dataStride) {
			f.m.b[offData+i] = 0x11
		}
		f.answer(0, tt.code, tt.count, tt.first, tt.second)
		if !f.Poll() || !*done || !tt.check(&r) {
			t.Errorf("%s: done %v: %+v, %d bytes, %+v, %v", tt.name, *done, r.Walk, r.Moved, r.PageIn, r.Err)
		}
	}
	for i, b := range room {
		inside := i >= 100 && i < 140 || i >= 200 && i < 260
		if (b != 0xee) != inside {
			t.Fatalf("byte %d is %#x: read beyond the buffers", i, b)
		}
	}
}

// TestLiesToALook lies in answer to the calls that wait for their answer.
func TestLiesToALook(t *testing.T) {
	f := newFake(t)
	answered := func(put func(data []byte), code, count uint64) func() {
		done := make(chan bool)
		go func() {
			defer close(done)
			for atomic.LoadUint32(f.m.state(0)) != stateSubmitted {
				time.Sleep(10 * time.Microsecond)
			}
			put(f.m.data(0, dataStride))
			f.answer(0, code, count, most, most)
		}()
		return func() { <-done }
	}
	none := func([]byte) {}
	for name, tt := range map[string]struct {
		put         func(b []byte)
		code, count uint64
	}{
		"nothing":          {none, 0, 0},
		"half of it":       {none, 0, mappingSize / 2},
		"somewhere else":   {func(b []byte) { putMapping(b, &proc.Mapping{Start: 0x9000, End: 0xa000}) }, 0, mappingSize},
		"ends before it":   {func(b []byte) { putMapping(b, &proc.Mapping{Start: 0x9000, End: 0x1000}) }, 0, most},
		"bytes of nothing": {func(b []byte) { copy(b, bytes.Repeat([]byte{0xff}, mappingSize)) }, 0, most},
		"an error":         {func(b []byte) { putMapping(b, &proc.Mapping{Start: 0, End: 0xa000}) }, codeOther, mappingSize},
	} {
		wait := answered(tt.put, tt.code, tt.count)
		if m, err := f.Mapping(0x7000); !errors.Is(err, ErrHelper) || m != (proc.Mapping{}) {
			t.Errorf("mapping, %s: %+v, %v, want ErrHelper", name, m, err)
		}
		wait()
	}
	for _, count := range []uint64{0, 7, 8, 24, 25, most} {
		dst := make([]proc.Entry, 4)
		wait := answered(func(b []byte) { copy(b, bytes.Repeat([]byte{0xff}, 64)) }, 0, count)
		n, err := f.Pagemap(0x7000, dst[:3])
		wait()
		if want := int(min(count, 24) / 8); n != want || (err == nil) != (want > 0) || dst[3] != 0 {
			t.Errorf("%d bytes of pagemap: %d, %v, %v", count, n, err, dst)
		}
	}
	wait := answered(none, uint64(codeOther), most)
	if err := f.InFile(0x7000); !errors.Is(err, ErrHelper) {
		t.Errorf("file: %v", err)
	}
	wait()
	for name, say := range map[string][]byte{"nothing": {messageOK}, "more": append([]byte{messageOK}, make([]byte, 65)...), "nonsense": {9}} {
		f.say(t, messageOK, 1, 2) // unasked, and dropped
		done := make(chan bool)
		go func() {
			defer close(done)
			_, _ = f.socket.Read(make([]byte, messageSize)) // the question
			f.say(t, say...)
		}()
		if b, err := f.Read(f.FD(), 0x7000, 16); !errors.Is(err, ErrHelper) {
			t.Errorf("read, %s: %x, %v", name, b, err)
		}
		<-done
	}
}

// TestStates: an invalid state, or one at the wrong time, answers no request. Counts that change
// without an answer neither block nor free anything.
func TestStates(t *testing.T) {
	f := newFake(t)
	for i := range Slots { // before any request
		f.answer(i, 0, most, most, most)
	}
	if f.Poll() || f.Pending() {
		t.Error("answers to nothing were taken")
	}
	var r, second Request
	r.AskWalk(0x7000, 1, true)
	second.AskWalk(0x7000, 1, true)
	done := submit(t, f.Port, &r)
	for _, state := range []uint32{stateFree, stateSubmitted, stateClaimed, 4, 0xffffffff} {
		atomic.StoreUint32(f.m.state(0), state)
		for range 1000 { // a storm of answers
			atomic.AddUint32(f.m.w32(offCompleted), 0x10001)
			atomic.AddUint32(f.m.w32(offSubmitted), 3)
			atomic.AddUint32(f.m.w32(offAwake), 1)
			if f.Poll() {
				t.Fatalf("state %d was taken for an answer", state)
			}
		}
	}
	if *done {
		t.Error("done")
	}
	f.answer(0, 0, 0, 0, 0)
	f.Poll()
	if !*done {
		t.Error("not done")
	}
	// The same answer again, to the next request.
	again := submit(t, f.Port, &second)
	f.Poll()
	if *again {
		t.Error("an answer was taken twice")
	}
	f.answer(0, 0, 0, 1, 0)
	f.Poll()
	if !*again || second.Walk.Absent != 1 {
		t.Errorf("done %v: %+v", *again, second.Walk)
	}
}

// TestMoreThanSlots: Submit refuses a request without a free slot, and a request from a Done gets
// the slot that has just become free.
func TestMoreThanSlots(t *testing.T) {
	f := newFake(t)
	var requests [Slots + 1]Request
	var order []int
	for i := range requests {
		r := &requests[i]
		r.AskWalk(device.VA(i)*page, 1, true)
		r.Done = func() {
			order = append(order, i)
			if i == 3 {
				if ok, ended := f.Submit(&requests[Slots], 1); !ok || ended {
					t.Errorf("from a Done: %v, %v", ok, ended)
				}
			}
		}
		if ok, ended := f.Submit(r, 1); ok != (i < Slots) || ended {
			t.Errorf("request %d: %v, %v", i, ok, ended)
		}
	}
	f.answer(3, 0, 0, 0, 0)
	f.Poll()
	if va := f.m.load(3, slotVA); va != Slots*page || len(order) != 1 {
		t.Errorf("slot 3 asks for %#x, after %v", va, order)
	}
	for i := range Slots {
		f.answer(i, 0, 0, 0, 0)
	}
	if f.Poll(); len(order) != Slots+1 || order[4] != Slots {
		t.Errorf("done: %v", order)
	}
}

// TestScribbles: a helper writes random words everywhere while pfd submits. No answer is more
// than was asked for, and nothing blocks.
func TestScribbles(t *testing.T) {
	f := newFake(t)
	random := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, 3*page)
	var requests [Slots]Request
	var pending [Slots]bool
	rounds := 200_000
	if testing.Short() {
		rounds = 10_000
	}
	for range rounds {
		i := random.IntN(Slots)
		if r := &requests[i]; !pending[i] {
			n := 1 + random.IntN(64)
			switch random.IntN(4) {
			case 0:
				r.AskWalk(device.VA(random.Uint64()), n, n%2 == 0)
			case 1:
				r.AskMove([][]byte{buf[page : page+n]}, device.VA(random.Uint64()), n%2 == 0, false)
			case 2:
				r.AskMove([][]byte{buf[page : page+16]}, device.VA(random.Uint64()), true, true)
			case 3:
				r.AskPageIn(device.VA(random.Uint64()), n, n%2 == 0)
			}
			all, size := pageMask(r.pages), r.bytes
			r.Done = func() {
				pending[i] = false
				if r.op == opWalk && (r.Walk.Absent|r.Walk.Denied)&^all != 0 || r.Moved < 0 || size > 0 && r.Moved > size ||
					r.PageIn.Resident&^all != 0 && r.op == opPageIn || r.PageIn.Kind >= gup.Kinds ||
					r.PageIn.New&^r.PageIn.Resident != 0 || r.PageIn.There && r.PageIn.Resident&1 == 0 {
					t.Fatalf("%d pages, %d bytes: %+v, %d, %+v", r.pages, size, r.Walk, r.Moved, r.PageIn)
				}
			}
			ok, ended := f.Submit(r, int64(1))
			pending[i] = ok && !ended
		}
		off := uint32(random.IntN(page)) &^ 7
		v := random.Uint64()
		if random.IntN(2) == 0 {
			off, v = slotAt(random.IntN(Slots)), uint64(stateDone)
		}
		atomic.StoreUint64(f.m.w64(off), v)
		f.m.b[offData+random.IntN(Size-offData)] = byte(v)
		f.Poll()
		f.Nudge(int64(random.Uint64() >> 1))
	}
	for i, b := range buf {
		if b != 0 && (i < page || i >= page+64) {
			t.Fatalf("byte %d was written", i)
		}
	}
}

func FuzzTake(f *testing.F) {
	for o := opWalk; o <= opInFile+1; o++ {
		f.Add(uint32(o), 1, 16, true, uint64(0), uint64(16), uint64(1), uint64(0))
		f.Add(uint32(o), 64, 512, false, most, most, most, most)
	}
	f.Fuzz(func(t *testing.T, o uint32, pages, size int, write bool, code, count, first, second uint64) {
		if size < 0 || size > dataStride {
			return // no request
		}
		r := Request{op: op(o), va: 0x7000, pages: pages, bytes: size, write: write}
		r.take(code, count, first, second)
		all := pageMask(pages)
		switch {
		case r.Moved < 0 || r.Moved > size:
			t.Errorf("%d bytes of %d", r.Moved, size)
		case (r.Walk.Absent|r.Walk.Denied|r.PageIn.Resident)&^all != 0 || r.Walk.Absent&r.Walk.Denied != 0:
			t.Errorf("pages %+v, %+v of %d", r.Walk, r.PageIn, pages)
		case r.PageIn.Kind >= gup.Kinds:
			t.Errorf("kind %v", r.PageIn.Kind)
		case r.op == opPageIn && (r.PageIn.Err == nil) != (r.PageIn.Resident&1 != 0):
			t.Errorf("page-in: %+v", r.PageIn)
		case (r.op == opMove || r.op == opOrdered) && r.Err == nil && r.Moved != size:
			t.Errorf("%d bytes of %d, and no error", r.Moved, size)
		}
		for _, err := range []error{r.Err, r.PageIn.Err} {
			if err != nil && err.Error() == "" {
				t.Error("an error without a text")
			}
		}
	})
}

func FuzzDecodeMessage(f *testing.F) {
	for _, m := range []message{{messageRegister, 0x7000, page}, {messageUnregister, 0x7000, page}, {messageRead, 0x7123, 16}, {messageRead, 0, 65}, {0, 0, 0}} {
		f.Add(m.encode(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMessage(b)
		if err != nil {
			if !errors.Is(err, errMessage) {
				t.Errorf("%v", err)
			}
			return
		}
		if again := m.encode(nil); !bytes.Equal(again, b) {
			t.Errorf("%x decodes and encodes to %x", b, again)
		}
		if m.kind == messageRead && (m.size < 1 || m.size > mostRead) || m.kind != messageRead && uint64(m.va)+m.size < m.size {
			t.Errorf("%+v", m)
		}
	})
}

// FuzzMapping: any bytes decode to a mapping, which encodes to the same bytes.
func FuzzMapping(f *testing.F) {
	f.Add(bytes.Repeat([]byte{0xff}, mappingSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < mappingSize {
			return
		}
		m := getMapping(b)
		var again [mappingSize]byte
		putMapping(again[:], &m)
		if getMapping(again[:]) != m {
			t.Errorf("%+v", m)
		}
		for _, va := range []device.VA{0, m.Start, m.End - 1, m.End, ^device.VA(0)} {
			if n := m.Clip(va, 64); n < 0 || n > 64 {
				t.Errorf("%d pages at %v of %+v", n, va, m)
			}
		}
	})
}
