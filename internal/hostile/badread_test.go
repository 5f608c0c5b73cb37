package hostile

import (
	"errors"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/rdma"
)

// answer waits for the firmware's answer to a read request.
func (r *raw) answer() mailbox.Ack {
	r.t.Helper()
	var m attach.Mail
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Microsecond) {
		if ok, _ := r.TakeMail(&m); ok {
			break
		}
		if time.Now().After(deadline) {
			r.t.Fatal("a read request is not answered")
		}
	}
	src := mailbox.DecodeSource(m.Source)
	a, err := mailbox.DecodeAnswer(m.Words[0])
	if err != nil || src.PDID != 0 || src.Node != 1 {
		r.t.Fatalf("answer %x from %+v: %v", m.Words[0], src, err)
	}
	return a
}

// touched returns what a read changes at its target, whatever its result.
func (w *world) touched() [4]uint64 {
	return [4]uint64{w.count(1, hw(device.TXBlocks)), w.count(1, "faults_total"), w.count(1, hw(device.Walks)), w.count(0, hw(device.RXBlocks))}
}

// An invalid read is an error at its initiator and has no effect at its target: no block, no
// fault, no access to its memory.
//
// The guard time-out is long, so that a stalled block is not retransmitted meanwhile.
func TestBadReads(t *testing.T) { onEach(t, badReads, "--guard-us", "1000000") }

func badReads(t *testing.T, w *world) {
	b := w.attach("stranger", attachOrder{Node: 1, Group: "stranger"})
	theirs := b.buffer("b", "anonymous", 8192, 9)
	read := w.raw(attach.Hello{Group: "readers", Node: 1})
	liar := w.raw(attach.Hello{Group: "readers"})
	src, dst, words := w.memory(8192, read), w.memory(8192, liar), w.memory(4096, liar)
	fill(src, 3)
	good := mailbox.ReadRequest{Size: 4096, Src: va(src), Dst: va(dst), Notify: va(words), First: 1, Last: 2}
	for i, c := range []struct {
		name   string
		change func(m *mailbox.ReadRequest)
		code   device.Code
	}{
		{"size 0", func(m *mailbox.ReadRequest) { m.Size = 0 }, device.CodeDecode},
		{"source past the width", func(m *mailbox.ReadRequest) { m.Src = 1 << 60 }, device.CodeDecode},
		{"source that ends past the width", func(m *mailbox.ReadRequest) { m.Src = 1<<48 - 64 }, device.CodeDecode},
		{"destination past the width", func(m *mailbox.ReadRequest) { m.Dst = 1 << 48 }, device.CodeDecode},
		{"no notification", func(m *mailbox.ReadRequest) { m.Notify = 0 }, device.CodeDecode},
		{"a domain that nobody has", func(m *mailbox.ReadRequest) { m.Target = 0xfffe }, device.CodeDomain},
		{"a domain that has not admitted us", func(m *mailbox.ReadRequest) {
			m.Target, m.Src = pdidOf(t, theirs.Remote), device.VA(theirs.VA)
		}, device.CodeDomain},
		{"a domain that has not admitted us, in its own name", func(m *mailbox.ReadRequest) {
			m.PDID = pdidOf(t, theirs.Remote)
			m.Target, m.Src = m.PDID, device.VA(theirs.VA)
		}, device.CodeDomain},
	} {
		t.Run(c.name, func(t *testing.T) {
			fill(dst, 4)
			before := w.touched()
			m := good
			m.Tag = uint16(100 + i)
			c.change(&m)
			m.TargetGeneration = liar.generation(1, m.Target)
			req := m.Encode()
			if s := liar.send(1, device.MailboxRead, req[:]...); s == device.PktzRefused {
				t.Fatal("the packetizer refuses the request")
			}
			want := mailbox.Ack{Transaction: device.TransactionID(m.Tag), Code: c.code, Sequence: device.Sequence(c.code)}
			if a := liar.answer(); a != want {
				t.Errorf("answer %+v, want %+v", a, want)
			}
			if now := w.touched(); now != before {
				t.Errorf("blocks, faults and walks of the target went from %v to %v", before, now)
			}
			if n, first := wrong(dst, 4, 0); n != 0 {
				t.Errorf("%d bytes arrived, the first at %d", n, first)
			}
		})
	}

	// The own node refuses these; nothing is sent.
	t.Run("tag in use", func(t *testing.T) {
		// The target pages in by itself, and never does: a read of it stays open.
		deaf := w.raw(attach.Hello{Group: "deaf", Node: 1, Method: pagein.Touch})
		from := w.raw(attach.Hello{Group: "deaf"})
		m := good
		m.Tag, m.Src, m.TargetGeneration = 7, va(w.memory(4096, deaf)), from.generation(1, 0)
		fault := w.count(1, "faults_total")
		req := m.Encode()
		if s := from.send(1, device.MailboxRead, req[:]...); s == device.PktzRefused {
			t.Fatal("the packetizer refuses a good request")
		}
		w.until("the read faults", func() bool { return w.count(1, "faults_total") > fault })
		before := w.touched()
		m.Size = 64
		req = m.Encode()
		if s := from.send(1, device.MailboxRead, req[:]...); s != device.PktzRefused {
			t.Errorf("STATUS %d of a request whose tag another read has", s)
		}
		if now := w.touched(); now != before {
			t.Errorf("blocks, faults and walks of the target went from %v to %v", before, now)
		}
	})
	t.Run("a node that does not exist", func(t *testing.T) {
		before := w.touched()
		req := good.Encode()
		if s := liar.send(0x3ffff, device.MailboxRead, req[:]...); s != device.PktzRefused {
			t.Errorf("STATUS %d of a request to a node that does not exist", s)
		}
		if now := w.touched(); now != before {
			t.Errorf("blocks, faults and walks of the target went from %v to %v", before, now)
		}
	})

	// A valid read still succeeds.
	m := good
	m.TargetGeneration = liar.generation(1, 0)
	req := m.Encode()
	liar.send(1, device.MailboxRead, req[:]...)
	w.until("a valid read completes", func() bool { return words[8] == 2 })
	if n, _ := wrong(dst[:4096], 3, 0); n != 0 {
		t.Errorf("%d wrong bytes of a valid read", n)
	}
	if n, _ := wrong(src, 3, 0); n != 0 {
		t.Errorf("%d bytes of the target changed", n)
	}
	b.holds("b", 9, 0, 8192)
}

// The same through the API: the errors that its user reads.
func TestErrorsOfReads(t *testing.T) { onEach(t, errorsOfReads) }

func errorsOfReads(t *testing.T, w *world) {
	b := w.attach("stranger", attachOrder{Node: 1, Group: "stranger"})
	theirs, err := rdma.ParseRemote(b.buffer("b", "anonymous", 8192, 9).Remote)
	if err != nil {
		t.Fatal(err)
	}
	e, err := rdma.Attach(w.ctx(), rdma.Options{Socket: w.socket(), Group: "readers"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	mine, err := e.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	dst := mine.Bytes()
	ours, err := rdma.ParseRemote(w.attach("target", attachOrder{Node: 1, Group: "readers"}).buffer("b", "anonymous", 8192, 9).Remote)
	if err != nil {
		t.Fatal(err)
	}
	past, nowhere := ours, ours
	past.VA, nowhere.Node = 1<<60, 0x3ffff
	for _, c := range []struct {
		name string
		src  rdma.Remote
		dst  []byte
		is   error
		code uint8 // 0: refused by the call itself
		text []string
	}{
		{"domain that does not admit", theirs, dst, rdma.ErrDomain, device.StatusDomain, append([]string{"read of 4096 bytes from node 1"}, refusedWith[device.CodeDomain].text...)},
		{"address past the width", past, dst, rdma.ErrAddress, device.StatusDecode, refusedWith[device.CodeDecode].text},
		{"node that does not exist", nowhere, dst, rdma.ErrAddress, device.StatusDecode, []string{"no such node"}},
		{"size 0", theirs, dst[:0], rdma.ErrRequest, 0, []string{"a read of 0 bytes: the least is 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, err := e.Read(w.ctx(), rdma.ReadRequest{Dst: c.dst, Src: c.src})
			if err == nil {
				err = x.Wait(w.ctx())
			}
			var failed *rdma.TransferError
			if !errors.Is(err, c.is) || errors.As(err, &failed) != (c.code != 0) || failed != nil && failed.Code != c.code {
				t.Fatalf("%v, want %v", err, c.is)
			}
			says(t, err.Error(), c.text...)
		})
	}
	b.holds("b", 9, 0, 8192)
}
