package atomics_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/internal/golden"
)

func TestAddressGolden(t *testing.T) {
	for _, c := range golden.Read(t, "testdata/addresses.txt") {
		t.Run(c.Name, func(t *testing.T) {
			a := atomics.Address(c.Words(t, "address")[0])
			node, offset := device.NodeID(c.Uint(t, "node")), c.Uint(t, "offset")
			if got := atomics.At(node, offset); got != a {
				t.Errorf("%v, want %v", got, a)
			}
			if got, ok := a.Node(); !ok || got != node {
				t.Errorf("node %d, %v", got, ok)
			}
			if a.Offset() != offset || a.Page() != c.Uint(t, "page") {
				t.Errorf("byte 0x%x of page 0x%x", a.Offset(), a.Page())
			}
			c.Done(t)
		})
	}
	if _, ok := atomics.Address(0xffff_ffffffff).Node(); ok {
		t.Error("partition 0 belongs to a node")
	}
}

func TestMessageGolden(t *testing.T) {
	for _, c := range golden.Read(t, "testdata/messages.txt") {
		t.Run(c.Name, func(t *testing.T) {
			want := c.Words(t, "words")
			var words [device.PktzMaxWords]uint64
			protection, tag := atomics.Protection(c.Uint(t, "protection")), atomics.Tag(c.Uint(t, "tag"))
			if c.Text(t, "kind") == "request" {
				r := atomics.Request{
					Thread: atomics.Thread(c.Uint(t, "thread")), Protection: protection, Tag: tag,
					Op: atomics.Op(c.Uint(t, "op")), Address: atomics.Address(c.Uint(t, "address")),
				}
				copy(r.Args[:], c.Words(t, "args"))
				if n := r.Encode(words[:]); !slices.Equal(words[:n], want) {
					t.Errorf("encoded %016x, want %016x", words[:n], want)
				}
				if got, err := atomics.DecodeRequest(want); err != nil || got != r {
					t.Errorf("decoded %+v, %v, want %+v", got, err, r)
				}
			} else {
				a := atomics.Answer{Number: uint16(c.Uint(t, "number")), Protection: protection, Tag: tag, Status: atomics.Status(c.Uint(t, "status"))}
				a.N = copy(a.Values[:], c.Words(t, "values"))
				if n := a.Encode(words[:]); !slices.Equal(words[:n], want) {
					t.Errorf("encoded %016x, want %016x", words[:n], want)
				}
				if got, err := atomics.DecodeAnswer(want); err != nil || got != a {
					t.Errorf("decoded %+v, %v, want %+v", got, err, a)
				}
			}
			c.Done(t)
		})
	}
}

// The request of figure 9 has 256 bits: the wired 56, the op code, the address and two arguments.
func TestFigure9(t *testing.T) {
	r := atomics.Request{Op: atomics.CAS}
	if n := r.Encode(make([]uint64, device.PktzMaxWords)); n*64 != 256 {
		t.Errorf("%d words", n)
	}
}

func TestThread(t *testing.T) {
	th := atomics.ThreadOf(0x2bcde, 33)
	if th != 0x86bcde || th.Node() != 0x2bcde || th.Interface() != 33 {
		t.Errorf("%x: interface %d of node %x", th, th.Interface(), th.Node())
	}
	if th := atomics.ThreadOf(0x7ffff, 0x7f); th != 0xffffff {
		t.Errorf("%x", th)
	}
}

func TestTag(t *testing.T) {
	if tag := atomics.TagOf(2, 0x1041); tag != 0x06 || tag.Channel() != 2 {
		t.Errorf("%x of channel %d", tag, tag.Channel())
	}
}

func TestNewer(t *testing.T) {
	for _, c := range []struct {
		n, m uint16
		want bool
	}{{1, 0, true}, {0, 1, false}, {5, 5, false}, {0, 0xffff, true}, {0x7fff, 0, true}, {0x8000, 0, false}} {
		if atomics.Newer(c.n, c.m) != c.want {
			t.Errorf("%d after %d is not %v", c.n, c.m, c.want)
		}
	}
}

// Each operation has a request and an answer that fit a packetizer, and no other length decodes.
func TestForms(t *testing.T) {
	known := 0
	for op := range atomics.Op(255) {
		words := make([]uint64, device.PktzMaxWords)
		words[0] = uint64(op)<<56 | 0x123456
		if !op.Valid() {
			r, err := atomics.DecodeRequest(words[:2])
			if !errors.Is(err, atomics.ErrOp) || r.Thread != 0x123456 {
				t.Errorf("%v: %v, thread %x", op, err, r.Thread)
			}
			continue
		}
		known++
		if op.Memory() != (op.Reads() || op.Writes()) || op.Memory() != (op < atomics.Alloc) {
			t.Errorf("%v: memory %v", op, op.Memory())
		}
		if op.Args() > atomics.MaxArgs || op.Values() > atomics.MaxValues || op.Reads() && op.Values() == 0 || 8*op.Values() > max(op.Bytes(), 8) {
			t.Errorf("%v: %d arguments, %d values", op, op.Args(), op.Values())
		}
		for n := range words {
			r, err := atomics.DecodeRequest(words[:n])
			if ok := n == 2+op.Args(); ok != (err == nil) || !ok && !errors.Is(err, atomics.ErrLength) {
				t.Errorf("%v of %d words: %v", op, n, err)
			}
			if n > 0 && r.Op != op {
				t.Errorf("%v of %d words has op %v", op, n, r.Op)
			}
		}
	}
	if known != 19 {
		t.Errorf("%d operations", known)
	}
}

func TestStrings(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{atomics.FetchAdd.String(), "fetch_add"}, {atomics.Op(0xff).String(), "op 0xff"}, {atomics.Op(0).String(), "op 0x00"},
		{atomics.Denied.String(), "the page belongs to another tree"}, {atomics.Status(9).String(), "status 9"}, {atomics.Status(200).String(), "status 200"},
		{atomics.At(1, 0x1001).String(), "0x0002-0000-0000-1001"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

func FuzzRequest(f *testing.F) {
	f.Add(uint64(0x120680000186bcde), uint64(1)<<48, uint64(1), uint8(4))
	f.Add(^uint64(0), ^uint64(0), ^uint64(0), uint8(8))
	f.Fuzz(func(t *testing.T, first, address, arg uint64, n uint8) {
		words := []uint64{first, address, arg, arg, arg, arg, arg, arg}[:n%9]
		r, err := atomics.DecodeRequest(words)
		if err != nil {
			return
		}
		again := make([]uint64, device.PktzMaxWords)
		if k := r.Encode(again); !slices.Equal(again[:k], words) {
			t.Fatalf("%016x encoded as %016x", words, again[:k])
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add(uint64(0x0006800001000041), uint64(7), uint8(2))
	f.Add(^uint64(0), ^uint64(0), uint8(8))
	f.Fuzz(func(t *testing.T, first, value uint64, n uint8) {
		words := []uint64{first, value, value, value, value, value, value, value}[:n%9]
		a, err := atomics.DecodeAnswer(words)
		if (err == nil) != (len(words) >= 1 && len(words) <= 5) {
			t.Fatalf("%d words: %v", len(words), err)
		}
		if err != nil {
			return
		}
		again := make([]uint64, device.PktzMaxWords)
		k := a.Encode(again)
		words[0] &^= 0xff0000 // no field of an answer
		if !slices.Equal(again[:k], words) {
			t.Fatalf("%016x encoded as %016x", words, again[:k])
		}
	})
}

// The effect of each operation on the words 10 to 13, and its values.
func TestApply(t *testing.T) {
	type words = [atomics.MaxValues]uint64
	type args = [atomics.MaxArgs]uint64
	for _, c := range []struct {
		op           atomics.Op
		args         args
		want, values words
	}{
		{atomics.Read64, args{}, words{10, 11, 12, 13}, words{10}},
		{atomics.Read128, args{}, words{10, 11, 12, 13}, words{10, 11}},
		{atomics.Read256, args{}, words{10, 11, 12, 13}, words{10, 11, 12, 13}},
		{atomics.Write64, args{1, 2, 3, 4}, words{1, 11, 12, 13}, words{}},
		{atomics.Write128, args{1, 2, 3, 4}, words{1, 2, 12, 13}, words{}},
		{atomics.Write256, args{1, 2, 3, 4}, words{1, 2, 3, 4}, words{}},
		{atomics.FetchAdd, args{1}, words{11, 11, 12, 13}, words{10}},
		{atomics.FetchAdd, args{^uint64(0)}, words{9, 11, 12, 13}, words{10}},
		{atomics.FetchAdd, args{^uint64(9)}, words{0, 11, 12, 13}, words{10}},
		{atomics.Swap, args{1}, words{1, 11, 12, 13}, words{10}},
		{atomics.CAS, args{10, 1}, words{1, 11, 12, 13}, words{10}},
		{atomics.CAS, args{11, 1}, words{10, 11, 12, 13}, words{10}},
		{atomics.FetchAnd, args{2}, words{2, 11, 12, 13}, words{10}},
		{atomics.FetchOr, args{5}, words{15, 11, 12, 13}, words{10}},
		{atomics.FetchXor, args{11}, words{1, 11, 12, 13}, words{10}},
		{atomics.CAS128, args{10, 11, 1, 2}, words{1, 2, 12, 13}, words{10, 11}},
		{atomics.CAS128, args{10, 10, 1, 2}, words{10, 11, 12, 13}, words{10, 11}},
		{atomics.CAS128, args{11, 11, 1, 2}, words{10, 11, 12, 13}, words{10, 11}},
		{atomics.CWrite256, args{10, 1, 2, 3, 4}, words{1, 2, 3, 4}, words{10, 11, 12, 13}},
		{atomics.CWrite256, args{1, 1, 2, 3, 4}, words{10, 11, 12, 13}, words{10, 11, 12, 13}},
		{atomics.Alloc, args{1, 2}, words{10, 11, 12, 13}, words{}},
	} {
		m := words{10, 11, 12, 13}
		if got := c.op.Apply(&m, &c.args); got != c.values || m != c.want {
			t.Errorf("%v %d: %d, memory %d, want %d, %d", c.op, c.args, got, m, c.values, c.want)
		}
	}
}
