package mailbox_test

import (
	"errors"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

// fakeBox is window mbox with messages in one mailbox.
type fakeBox struct {
	base     uint32
	messages [][]uint64
	source   mailbox.Source
	taken    int
	overflow bool
	gone     bool
}

func (f *fakeBox) Load(offset uint32, width int) (uint64, error) {
	if width == 8 {
		return f.take(offset)
	}
	if f.gone {
		return 0, device.ErrGone
	}
	if offset != f.base+device.MboxStatus {
		return 0, nil
	}
	v := uint64(len(f.messages))
	if f.overflow {
		v |= 1 << 16
	}
	return v, nil
}

func (f *fakeBox) Store(offset uint32, _ int, v uint64) error {
	if f.gone {
		return device.ErrGone
	}
	if offset == f.base+device.MboxStatus && v&(1<<16) != 0 {
		f.overflow = false
	}
	return nil
}

func (f *fakeBox) take(offset uint32) (uint64, error) {
	if f.gone {
		return 0, device.ErrGone
	}
	switch {
	case offset == f.base+device.MboxData && len(f.messages) > 0:
		m := f.messages[0]
		v := m[f.taken]
		if f.taken++; f.taken == len(m) {
			f.messages, f.taken = f.messages[1:], 0
		}
		return v, nil
	case offset == f.base+device.MboxData:
		return device.MboxEmpty, nil
	case offset == f.base+device.MboxSource && len(f.messages) > 0:
		s := f.source
		s.Words = len(f.messages[0])
		return s.Encode(), nil
	}
	return 0, nil
}

func TestBox(t *testing.T) {
	from := mailbox.Source{Node: 0x2abcde, Interface: 17, PDID: 0xbeef}
	f := &fakeBox{base: 5 * device.PageSize, source: from, overflow: true, messages: [][]uint64{
		{1},
		{1, 2, 3, 4, 5, 6, 7, 8},
		{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, // no packetizer can send that
		{11, 12},
	}}
	b := mailbox.NewBox(device.Window{Access: f}, 5)
	if n, over, err := b.Status(); n != 4 || !over || err != nil {
		t.Fatalf("status %d %v %v", n, over, err)
	}
	for i, n := range []int{1, 8, 8, 2} {
		var words [device.PktzMaxWords]uint64
		s, err := b.Receive(&words)
		want := from
		want.Words = n
		if err != nil || s != want {
			t.Fatalf("message %d: %+v %v", i, s, err)
		}
		first := uint64(1)
		if i == 3 {
			first = 11
		}
		for k := range n {
			if words[k] != first+uint64(k) {
				t.Errorf("message %d: %v", i, words)
			}
		}
	}
	var words [device.PktzMaxWords]uint64
	if s, err := b.Receive(&words); err != nil || s.Words != 0 {
		t.Errorf("empty: %+v %v", s, err)
	}
	f.gone = true
	if _, err := b.Receive(&words); !errors.Is(err, device.ErrGone) {
		t.Errorf("receive: %v", err)
	}
	if _, _, err := b.Status(); !errors.Is(err, device.ErrGone) {
		t.Errorf("status: %v", err)
	}
}

func TestBoxAllocatesNothing(t *testing.T) {
	f := &fakeBox{base: 5 * device.PageSize}
	b := mailbox.NewBox(device.Window{Access: f}, 5)
	var words [device.PktzMaxWords]uint64
	message := [][]uint64{{1, 2, 3}}
	if n := testing.AllocsPerRun(100, func() {
		f.messages = message
		if s, err := b.Receive(&words); s.Words != 3 || err != nil {
			t.Fatal(s, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}
