package attach

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	cases "github.com/exanet/pfd/internal/golden"
)

// golden reads the golden messages from docs/attach.md.
func golden(t testing.TB) map[string][]byte { return cases.Document(t, "../docs/attach.md") }

func TestGoldenOfTheDocument(t *testing.T) {
	g := golden(t)
	hello := Hello{
		Product: "exanet 1.0", Node: 0x2a, Group: "app", Method: pagein.Touch, Policy: pagein.PI4,
		Accept: []device.PDID{0x0102, 0xbeef}, AcceptGroup: true, ProofVA: 0x7f0000000800,
	}
	copy(hello.Proof[:], bytes.Repeat([]byte{0x50}, ProofSize))
	copy(hello.Key[:], bytes.Repeat([]byte{0x4b}, KeySize))
	welcome := Welcome{"exanet 1.0", Grant{
		Slot: 3, Interface: 19, Member: 1, VABits: 48, PDID: 0x1234,
		Method: pagein.Touch, Policy: pagein.PI4, Node: 0x2a, PFDPort: 0x01020304, OwnPort: 0xfffff123,
		PFDPID: 4242, Caps: 0x0b100430, Generation: 0xa1020304, Page: 2 << 20,
	}}
	refused := RefusedError{Product: "exanet 1.0", Code: CodeQuota, Refused: TypeHello, Text: "too many"}
	ended := Ended{Product: "exanet 1.0", Reason: ReasonKicked, Text: "bye"}

	check := func(name string, enc []byte, err error, dec any, derr error, want any) {
		t.Helper()
		if err != nil || derr != nil {
			t.Errorf("%s: encoding: %v, decoding: %v", name, err, derr)
		}
		if !bytes.Equal(enc, g[name]) {
			t.Errorf("%s: encoded\n%x, the document has\n%x", name, enc, g[name])
		}
		if !reflect.DeepEqual(dec, want) {
			t.Errorf("%s: the document decodes to %+v, want %+v", name, dec, want)
		}
		delete(g, name)
	}
	b, err := hello.Append(nil)
	h, derr := DecodeHello(g["hello"])
	check("hello", b, err, h, derr, hello)
	b, err = welcome.Append(nil)
	w, derr := DecodeWelcome(g["welcome"])
	check("welcome", b, err, w, derr, welcome)
	r, derr := DecodeRefused(g["refused"])
	check("refused", refused.Append(nil), nil, r, derr, &refused)
	e, derr := DecodeEnded(g["ended"])
	check("ended", ended.Append(nil), nil, e, derr, ended)

	helper := HelperRequest{Product: "exanet 1.0"}
	hp, derr := DecodeHelperRequest(g["helper"])
	check("helper", helper.Append(nil), nil, hp, derr, helper)

	share := Share{Product: "exanet 1.0", VA: 0x7f0000001000, Size: 2 << 20, Offset: 0x3000, Writable: true}
	sh, derr := DecodeShare(g["share"])
	check("share", share.Append(nil), nil, sh, derr, share)
	share.Watched = true
	if again, err := DecodeShare(share.Append(nil)); err != nil || again != share {
		t.Errorf("a share with a userfaultfd that reports unmaps: %+v, %v", again, err)
	}
	share.Folio = 16
	sh, derr = DecodeShare(g["share-folios"])
	check("share-folios", share.Append(nil), nil, sh, derr, share)
	unshare := Range{Product: "exanet 1.0", Type: TypeUnshare, VA: 0x7f0000001000, Size: 2 << 20}
	un, derr := DecodeRange(g["unshare"])
	check("unshare", unshare.Append(nil), nil, un, derr, unshare)
	shared := Shared{Product: "exanet 1.0", VA: 0x7f0000001000, Size: 2 << 20, Answered: TypeShare}
	sd, derr := DecodeShared(g["shared"])
	check("shared", shared.Append(nil), nil, sd, derr, shared)

	opened := device.MemoryWindow{VA: 0x7f0000001003, Bytes: 0x2005, Peer: 0x1234, Rights: device.RightWrite | device.RightMessages}
	for name, typ := range map[string]Type{"window": TypeWindow, "unwindow": TypeUnwindow} {
		w := Window{Product: "exanet 1.0", Type: typ, MemoryWindow: opened}
		got, derr := DecodeWindow(g[name])
		check(name, w.Append(nil), nil, got, derr, w)
	}
	windowed := Shared{Product: "exanet 1.0", VA: opened.VA, Size: opened.Bytes, Answered: TypeWindow}
	sd, derr = DecodeShared(g["windowed"])
	check("windowed", windowed.Append(nil), nil, sd, derr, windowed)
	ring := Ring{Product: "exanet 1.0", VA: 0x7f0000001010, Size: 32, Arm: 0x7f0000003004}
	rg, derr := DecodeRing(g["ring"])
	check("ring", ring.Append(nil), nil, rg, derr, ring)
	ringed := Shared{Product: "exanet 1.0", VA: ring.VA, Size: ring.Size, Answered: TypeRing}
	sd, derr = DecodeShared(g["ringed"])
	check("ringed", ringed.Append(nil), nil, sd, derr, ringed)
	unring := Range{Product: "exanet 1.0", Type: TypeUnring, Size: 3}
	un, derr = DecodeRange(g["unring"])
	check("unring", unring.Append(nil), nil, un, derr, unring)

	token := Token(bytes.Repeat([]byte{0x74}, 16))
	thread := Thread{Product: "exanet 1.0", Token: token}
	th, derr := DecodeThread(g["thread"])
	check("thread", thread.Append(nil), nil, th, derr, thread)
	threaded := Threaded{Product: "exanet 1.0", Interface: 33, Index: 2, ID: 0x840001, Protection: 0x800000, Region: 0x103, Token: token}
	b, err = threaded.Append(nil)
	td, derr := DecodeThreaded(g["threaded"])
	check("threaded", b, err, td, derr, threaded)
	unthread := Unthread{Product: "exanet 1.0", Index: 2}
	ut, derr := DecodeUnthread(g["unthread"])
	check("unthread", unthread.Append(nil), nil, ut, derr, unthread)
	unthreaded := Shared{Product: "exanet 1.0", VA: 2, Answered: TypeUnthread}
	sd, derr = DecodeShared(g["unthreaded"])
	check("unthreaded", unthreaded.Append(nil), nil, sd, derr, unthreaded)
	hello.Threads = true
	b, err = hello.Append(nil)
	if again, derr := DecodeHello(b); err != nil || derr != nil || !reflect.DeepEqual(again, hello) || b[79] != 3 {
		t.Errorf("a hello that asks for threads: flags %#x, %+v, %v, %v", b[79], again, err, derr)
	}
	hello.Place = true
	b, err = hello.Append(nil)
	if again, derr := DecodeHello(b); err != nil || derr != nil || !reflect.DeepEqual(again, hello) || b[79] != 7 {
		t.Errorf("a hello with a node's place: flags %#x, %+v, %v, %v", b[79], again, err, derr)
	}

	for name, typ := range map[string]Type{"memory": TypeMemory, "mapped": TypeMapped} {
		product, derr := decode(g[name], typ, headerSize)
		check(name, appendBare(nil, typ, "exanet 1.0"), nil, product, derr, "exanet 1.0")
	}

	for name, typ := range map[string]Type{"register": TypeRegister, "prefetch": TypePrefetch, "invalidate": TypeInvalidate} {
		r := Range{Product: "exanet 1.0", Type: typ, VA: 0x7f0000001000, Size: 2 << 20}
		got, derr := DecodeRange(g[name])
		check(name, r.Append(nil), nil, got, derr, r)
	}

	// Pages: the descriptor and the packetizer channel of the document.
	p := testPages(t)
	p.Publish(0, &device.Descriptor{
		Src: 0x7f0000001000, Dst: 0x7f00deadb000, Notify: 0x7f00deadc010, First: 1, Last: 2,
		Size: 0x1001, DstNode: 0x2a, DstPDID: 0x1234, DstGeneration: 0xa1020304, Urgent: true,
	})
	p.AskAbort(0)
	check("descriptor", p.Bytes()[:64], nil, nil, nil, nil)
	p.Send(0, 0x2a, 1, 0x31448d3)
	check("packetizer", p.Bytes()[PktzPage:PktzPage+0x58], nil, nil, nil, nil)
	for name := range g {
		t.Errorf("golden %s of the document is not checked", name)
	}
}

func TestDecodeRefuses(t *testing.T) {
	good := golden(t)
	decoders := map[string]func([]byte) error{
		"hello":      func(b []byte) error { _, err := DecodeHello(b); return err },
		"welcome":    func(b []byte) error { _, err := DecodeWelcome(b); return err },
		"refused":    func(b []byte) error { _, err := DecodeRefused(b); return err },
		"ended":      func(b []byte) error { _, err := DecodeEnded(b); return err },
		"share":      func(b []byte) error { _, err := DecodeShare(b); return err },
		"unshare":    func(b []byte) error { _, err := DecodeRange(b); return err },
		"register":   func(b []byte) error { _, err := DecodeRange(b); return err },
		"prefetch":   func(b []byte) error { _, err := DecodeRange(b); return err },
		"shared":     func(b []byte) error { _, err := DecodeShared(b); return err },
		"window":     func(b []byte) error { _, err := DecodeWindow(b); return err },
		"unwindow":   func(b []byte) error { _, err := DecodeWindow(b); return err },
		"windowed":   func(b []byte) error { _, err := DecodeShared(b); return err },
		"ring":       func(b []byte) error { _, err := DecodeRing(b); return err },
		"ringed":     func(b []byte) error { _, err := DecodeShared(b); return err },
		"unring":     func(b []byte) error { _, err := DecodeRange(b); return err },
		"thread":     func(b []byte) error { _, err := DecodeThread(b); return err },
		"threaded":   func(b []byte) error { _, err := DecodeThreaded(b); return err },
		"unthread":   func(b []byte) error { _, err := DecodeUnthread(b); return err },
		"unthreaded": func(b []byte) error { _, err := DecodeShared(b); return err },
		"helper":     func(b []byte) error { _, err := DecodeHelperRequest(b); return err },
		"memory":     func(b []byte) error { _, err := decode(b, TypeMemory, headerSize); return err },
		"mapped":     func(b []byte) error { _, err := decode(b, TypeMapped, headerSize); return err },
	}
	set := func(off int, v ...byte) func([]byte) []byte {
		return func(b []byte) []byte { copy(b[off:], v); return b }
	}
	for _, tt := range []struct {
		msg, name string
		change    func([]byte) []byte
		want      error
	}{
		{"hello", "empty", func([]byte) []byte { return nil }, ErrMessage},
		{"hello", "header only", func(b []byte) []byte { return b[:72] }, ErrMessage},
		{"hello", "one byte short", func(b []byte) []byte { return b[:len(b)-1] }, ErrMessage},
		{"hello", "one byte long", func(b []byte) []byte { return append(b, 0) }, ErrMessage},
		{"hello", "another size that its length states", func(b []byte) []byte { return set(4, 240)(append(b, make([]byte, 8)...)) }, ErrMessage},
		{"hello", "length of 4 GiB", set(4, 0xff, 0xff, 0xff, 0xff), ErrMessage},
		{"hello", "another type", set(0, 2), ErrMessage},
		{"hello", "another protocol", set(2, 9), ErrMessage},
		{"hello", "product without NUL", set(8, bytes.Repeat([]byte{'x'}, 64)...), ErrMessage},
		{"hello", "product with bytes after NUL", set(70, 'x'), ErrMessage},
		{"hello", "product with a terminal escape", set(8, 0x1b), ErrMessage},
		{"hello", "product not UTF-8", set(8, 0xff), ErrMessage},
		{"hello", "node of 23 bits", set(72, 0, 0, 0x40, 0), ErrValue},
		{"hello", "method", set(76, 5), ErrValue},
		{"hello", "policy", set(77, 5), ErrValue},
		{"hello", "17 accepted", set(78, 17), ErrValue},
		{"hello", "255 accepted", set(78, 255), ErrValue},
		{"hello", "accepted PDID 0", set(78, 3), ErrValue},
		{"hello", "accepted PDID after the last", set(78, 1), ErrMessage},
		{"hello", "unknown flag", set(79, 9), ErrValue},
		{"hello", "no group", set(112, 0, 0, 0), ErrValue},
		{"hello", "group with a slash", set(112, '/'), ErrValue},
		{"hello", "group without NUL", set(112, bytes.Repeat([]byte{'x'}, 64)...), ErrMessage},
		{"hello", "of version 1", func(b []byte) []byte { return set(2, 1, 0, 176)(b[:176]) }, ErrMessage},
		{"hello", "of version 1's size", func(b []byte) []byte { return set(4, 176)(b[:176]) }, ErrMessage},
		{"welcome", "slot 16", set(72, 16), ErrValue},
		{"welcome", "interface of pfd's", set(73, 15), ErrValue},
		{"welcome", "interface 64", set(73, 64), ErrValue},
		{"welcome", "38 address bits", set(75, 38), ErrValue},
		{"welcome", "49 address bits", set(75, 49), ErrValue},
		{"welcome", "PDID 0", set(76, 0, 0), ErrValue},
		{"welcome", "generation 0", set(104, 0, 0, 0, 0), ErrValue},
		{"welcome", "pages of 3 MiB", set(108, 0, 0, 0x30, 0), ErrValue},
		{"welcome", "method left open", set(78, 0), ErrValue},
		{"welcome", "policy left open", set(79, 0), ErrValue},
		{"welcome", "node of 23 bits", set(80, 0, 0, 0x40), ErrValue},
		{"welcome", "pages of a byte", set(108, 1, 0, 0, 0), ErrValue},
		{"refused", "reserved", set(78, 1), ErrMessage},
		{"refused", "text without NUL", set(80, bytes.Repeat([]byte{'x'}, 432)...), ErrMessage},
		{"ended", "reserved", set(76, 1), ErrMessage},
		{"ended", "text with a newline", set(80, '\n'), ErrMessage},
		{"share", "one byte short", func(b []byte) []byte { return b[:len(b)-1] }, ErrMessage},
		{"share", "address not of a page", set(72, 1), ErrValue},
		{"share", "no bytes", set(80, 0, 0, 0), ErrValue},
		{"share", "half a page", set(81, 8), ErrValue},
		{"share", "file offset not of a page", set(88, 1), ErrValue},
		{"share", "address that wraps", set(72, 0, 0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), ErrValue},
		{"share", "file offset that wraps", set(88, 0, 0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), ErrValue},
		{"share", "unknown flag", set(96, 5), ErrValue},
		{"share", "reserved", set(103, 1), ErrMessage},
		{"share", "a folio of one page", set(100, 1), ErrValue},
		{"share", "a folio of three pages", set(100, 3), ErrValue},
		{"share", "a folio of 1024 pages", set(101, 4), ErrValue},
		{"unshare", "no bytes", set(80, 0, 0, 0), ErrValue},
		{"register", "no bytes", set(80, 0, 0, 0), ErrValue},
		{"register", "half a page", set(72, 8), ErrValue},
		{"register", "another type", set(0, 5), ErrMessage},
		{"register", "another version", set(2, 1), ErrMessage},
		{"window", "one byte short", func(b []byte) []byte { return set(4, 95)(b[:95]) }, ErrMessage},
		{"window", "another type", set(0, 5), ErrMessage},
		{"window", "another version", set(2, 1), ErrMessage},
		{"window", "first reserved byte", set(91, 1), ErrMessage},
		{"window", "last reserved byte", set(95, 1), ErrMessage},
		{"window", "no bytes", set(80, 0, 0), ErrValue},
		{"window", "past the end of the address space", set(72, 0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), ErrValue},
		{"window", "all addresses", set(80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), ErrValue},
		{"window", "no right", set(90, 0), ErrValue},
		{"window", "unknown right", set(90, 0x12), ErrValue},
		{"unwindow", "no right", set(90, 0), ErrValue},
		{"windowed", "no bytes", set(80, 0, 0), ErrValue},
		{"windowed", "pages are needed for a share", set(88, 5), ErrValue},
		{"ring", "one byte short", func(b []byte) []byte { return set(4, 103)(b[:103]) }, ErrMessage},
		{"ring", "another type", set(0, 18), ErrMessage},
		{"ring", "reserved", set(103, 1), ErrMessage},
		{"ring", "no bytes", set(80, 0), ErrValue},
		{"ring", "half a word", set(80, 4), ErrValue},
		{"ring", "address of half a word", set(72, 4), ErrValue},
		{"ring", "past the end of the address space", set(72, 0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0), ErrValue},
		{"ring", "behind the end of the address space", set(78, 1), ErrValue},
		{"ring", "bytes that wrap", set(80, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), ErrValue},
		{"ring", "no ARM", set(88, 0, 0, 0, 0, 0, 0), ErrValue},
		{"ring", "ARM not aligned", set(88, 2), ErrValue},
		{"ring", "ARM behind the end of the address space", set(94, 1), ErrValue},
		{"ring", "ring 8 of the mailbox", set(72, 0, 0, 0, 0, 0, 0, 0, 0, 8), ErrValue},
		{"ringed", "the type of another answer", set(0, 7), ErrMessage},
		{"ringed", "answer to an unring", set(88, 19), ErrMessage},
		{"ringed", "answer to nothing", set(88, 0), ErrMessage},
		{"unring", "ring 8 of the mailbox", set(80, 8), ErrValue},
		{"unring", "half a word", set(73, 1), ErrValue},
		{"thread", "one byte short", func(b []byte) []byte { return set(4, 95)(b[:95]) }, ErrMessage},
		{"thread", "another type", set(0, 22), ErrMessage},
		{"thread", "reserved", set(95, 1), ErrMessage},
		{"threaded", "interface of a slot", set(72, 31), ErrValue},
		{"threaded", "interface 64", set(72, 64), ErrValue},
		{"threaded", "thread 8", set(73, 8), ErrValue},
		{"threaded", "reserved", set(75, 1), ErrMessage},
		{"threaded", "thread of another interface", set(78, 0x80), ErrValue},
		{"threaded", "thread of 25 bits", set(79, 1), ErrValue},
		{"threaded", "protection id 0", set(80, 0, 0, 0), ErrValue},
		{"threaded", "protection id of 25 bits", set(83, 1), ErrValue},
		{"threaded", "region 16384", set(85, 0x40), ErrValue},
		{"threaded", "no token", set(88, make([]byte, 16)...), ErrValue},
		{"unthread", "thread 8", set(72, 8), ErrValue},
		{"unthread", "reserved", set(79, 1), ErrMessage},
		{"unthreaded", "thread 8", set(72, 8), ErrValue},
		{"unthreaded", "with bytes", set(80, 1), ErrValue},
		{"helper", "reserved", set(79, 1), ErrMessage},
		{"helper", "one byte short", func(b []byte) []byte { return set(4, 79)(b[:79]) }, ErrMessage},
		{"helper", "another type", set(0, 2), ErrMessage},
		{"memory", "another type", set(0, 11), ErrMessage},
		{"mapped", "one byte short", func(b []byte) []byte { return set(4, 71)(b[:71]) }, ErrMessage},
		{"mapped", "one byte long", func(b []byte) []byte { return set(4, 73)(append(b, 0)) }, ErrMessage},
		{"mapped", "another version", set(2, 1), ErrMessage},
		{"shared", "answer to a hello", set(88, 1), ErrValue},
		{"shared", "reserved", set(90, 1), ErrMessage},
		{"shared", "reserved at the end", set(95, 1), ErrMessage},
	} {
		b := tt.change(bytes.Clone(good[tt.msg]))
		if err := decoders[tt.msg](b); !errors.Is(err, tt.want) {
			t.Errorf("%s, %s: %v, want %v", tt.msg, tt.name, err, tt.want)
		}
	}
}

func TestAppendRefuses(t *testing.T) {
	h := Hello{Group: "g", Accept: make([]device.PDID, 17)}
	if b, err := h.Append([]byte{1}); !errors.Is(err, ErrValue) || len(b) != 1 {
		t.Errorf("17 accepted PDIDs: %v", err)
	}
	w := Welcome{}
	if _, err := w.Append(nil); !errors.Is(err, ErrValue) {
		t.Errorf("empty welcome: %v", err)
	}
}

// TestTextsAreCut: a text that does not fit is cut at a character, and a peer's bytes cannot
// control a terminal.
func TestTextsAreCut(t *testing.T) {
	r := RefusedError{Product: strings.Repeat("é", 40), Text: "\x1b[2J" + strings.Repeat("ä", 300)}
	got, err := DecodeRefused(r.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Repeat("é", 31); got.Product != want {
		t.Errorf("product %q, want %q", got.Product, want)
	}
	if want := "?[2J" + strings.Repeat("ä", 213); got.Text != want {
		t.Errorf("text of %d bytes, want %d", len(got.Text), len(want))
	}
}

func FuzzDecode(f *testing.F) {
	for _, b := range golden(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		same := func(name string, enc []byte, err error) {
			if err != nil {
				t.Fatalf("%s decodes and does not encode: %v", name, err)
			}
			if !bytes.Equal(enc, b) {
				t.Fatalf("%s: decoded and encoded again\n%x, was\n%x", name, enc, b)
			}
		}
		if r, err := DecodeRange(b); err == nil {
			same("range", r.Append(nil), nil)
		}
		if r, err := DecodeRing(b); err == nil {
			same("ring", r.Append(nil), nil)
		}
		if w, err := DecodeWindow(b); err == nil {
			same("window", w.Append(nil), nil)
		}
		if h, err := DecodeHello(b); err == nil {
			enc, err := h.Append(nil)
			same("hello", enc, err)
		}
		if w, err := DecodeWelcome(b); err == nil {
			enc, err := w.Append(nil)
			same("welcome", enc, err)
		}
		if m, err := DecodeShare(b); err == nil {
			same("share", m.Append(nil), nil)
		}
		for _, typ := range []Type{TypeMemory, TypeMapped} {
			if product, err := decode(b, typ, headerSize); err == nil {
				same("header alone", appendBare(nil, typ, product), nil)
			}
		}
		if m, err := DecodeHelperRequest(b); err == nil {
			same("helper", m.Append(nil), nil)
		}
		if m, err := DecodeThread(b); err == nil {
			same("thread", m.Append(nil), nil)
		}
		if m, err := DecodeThreaded(b); err == nil {
			enc, err := m.Append(nil)
			same("threaded", enc, err)
		}
		if m, err := DecodeUnthread(b); err == nil {
			same("unthread", m.Append(nil), nil)
		}
		if m, err := DecodeShared(b); err == nil {
			same("shared", m.Append(nil), nil)
		}
		if r, err := DecodeRefused(b); err == nil {
			same("refused", r.Append(nil), nil)
		}
		if e, err := DecodeEnded(b); err == nil {
			same("ended", e.Append(nil), nil)
		}
		// Every message that is accepted or refused has a header.
		if h, err := DecodeHeader(b); err == nil && (uint64(h.Length) != uint64(len(b)) || len(h.Product) > productLength) {
			t.Fatalf("header %+v of %d bytes", h, len(b))
		}
	})
}
