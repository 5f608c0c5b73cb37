package r5

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/wire"
)

// Members leave in order of insertion, even if others are removed from the middle.
func TestTimerListsKeepTheirOrder(t *testing.T) {
	fw := New(Config{}, new([device.Counters]uint64))
	rng := rand.New(rand.NewPCG(1, 2))
	var model [lists][]int16
	drop := func(id int16) {
		for i := range model {
			model[i] = slices.DeleteFunc(model[i], func(o int16) bool { return o == id })
		}
	}
	for step := range 5000 {
		id := int16(rng.IntN(40))
		drop(id)
		row := fw.tx.At(int(id))
		row.id = id
		if rng.IntN(3) == 0 {
			fw.delist(row)
		} else {
			list := 1 + rng.IntN(lists-1)
			fw.enlist(row, list, int64(step))
			model[list] = append(model[list], id)
		}
		first := int64(1<<63 - 1)
		for i := 1; i < lists; i++ {
			var forth, back []int16
			for id := fw.timers[i].head; id >= 0; id = fw.timed[id].next {
				forth = append(forth, id)
			}
			for id := fw.timers[i].tail; id >= 0; id = fw.timed[id].prev {
				back = append(back, id)
			}
			slices.Reverse(back)
			if !slices.Equal(forth, model[i]) || !slices.Equal(back, model[i]) {
				t.Fatalf("step %d: list %d holds %v (backwards %v), want %v", step, i, forth, back, model[i])
			}
			if len(model[i]) > 0 {
				first = min(first, fw.tx.At(int(model[i][0])).since+fw.period(i))
			}
		}
		if d := fw.Deadline(); d != first {
			t.Fatalf("step %d: deadline %d, want %d", step, d, first)
		}
		if d := fw.deadlineOfAll(); d != first {
			t.Fatalf("step %d: deadline of all %d, want %d", step, d, first)
		}
	}
}

// A block is retransmitted after the time-out, which starts when it was sent.
func TestTimeOut(t *testing.T) {
	r := newRig(t)
	r.start(0, 0, dst, 100)
	b := r.one()
	if r.now += 50 * ms; r.fw.Deadline() < 1<<62 {
		t.Error("a deadline while the block is still being read")
	}
	r.sent(b)
	for i := range 3 {
		if d := r.expire(); d != 10*ms {
			t.Errorf("time-out after %d ns", d)
		}
		again := r.one()
		if again.ID != b.ID || again.Seq != b.Seq.Next() || again.First != 1 || again.VA != b.VA {
			t.Errorf("retransmission %d: id %d seq %d first %d after id %d seq %d", i, again.ID, again.Seq, again.First, b.ID, b.Seq)
		}
		b = again
		r.sent(b)
	}
	if r.counts[device.Timeouts] != 3 || r.counts[device.Retransmits] != 3 {
		t.Errorf("%d time-outs, %d retransmissions", r.counts[device.Timeouts], r.counts[device.Retransmits])
	}
	// After a NACK 1 the guard replaces it, and doubles up to 16 times.
	for _, want := range []int64{20, 40, 80, 160, 320, 320, 320} {
		r.reply(b, device.CodeSlaveError)
		r.none()
		if r.done[0].Paused != 1 {
			t.Error("not reported as paused")
		}
		if d := r.expire(); d != want*ms {
			t.Errorf("guard of %d ms, want %d", d/ms, want)
		}
		b = r.one()
		if r.done[0].Paused != 0 {
			t.Error("still reported as paused")
		}
		r.sent(b)
	}
	if r.counts[device.Timeouts] != 3 || r.counts[device.Guards] != 7 {
		t.Errorf("%d time-outs, %d guards", r.counts[device.Timeouts], r.counts[device.Guards])
	}
	// A RAPF retransmits at once, and resets the guard.
	r.reply(b, device.CodeSlaveError)
	r.rapf(b)
	b = r.one()
	r.sent(b)
	r.reply(b, device.CodeSlaveError)
	r.none()
	if d := r.expire(); d != 20*ms {
		t.Errorf("guard of %d ms after a RAPF", d/ms)
	}
	r.ack(r.one())
	r.none()
	if r.done[0].Done != device.DoneCompleted || r.ends != 1 || r.fw.Deadline() < 1<<62 {
		t.Errorf("%+v, deadline %d", r.done[0], r.fw.Deadline())
	}
}

// Refusals are retried at once twice, and then after 1, 2, 4 .. 64 ms.
func TestBackOff(t *testing.T) {
	for _, code := range []device.Code{device.CodeNoContext, device.CodeCorrupt, device.CodeBufferFull} {
		r := newRig(t)
		r.start(0, 0, dst, 100)
		b := r.one()
		for i, want := range []int64{0, 0, 1, 2, 4, 8, 16, 32, 64, 64, 64} {
			r.sent(b)
			r.reply(b, code)
			if want > 0 {
				r.none()
				if d := r.expire(); d != want*ms {
					t.Errorf("code %d: refusal %d: retransmitted after %d ns, want %d ms", code, i+1, d, want)
				}
			}
			b = r.one()
		}
		// A time-out in between does not end the row of refusals; a RAPF does.
		r.sent(b)
		r.rapf(b)
		b = r.one()
		r.sent(b)
		r.reply(b, code)
		r.one()
	}
}

// The limits: 64 attempts without an acknowledgement or a RAPF, 1024 RAPFs.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name   string
		code   device.Code // the receiver's answer, 0 for none
		rapfs  int         // one after this many attempts, 0 for never
		noFIFO bool
		fault  bool // the source cannot be read
		status uint8
		sends  int
	}{
		{name: "no answer", status: device.StatusLimit, sends: 65},
		{name: "page fault", code: device.CodeSlaveError, status: 1, sends: 65},
		{name: "no context", code: device.CodeNoContext, status: 3, sends: 65},
		{name: "corrupt", code: device.CodeCorrupt, status: 4, sends: 65},
		{name: "full", code: device.CodeBufferFull, status: 7, sends: 65},
		{name: "source fault", fault: true, status: 1, sends: 65},
		{name: "RAPFs", code: device.CodeSlaveError, rapfs: 1, status: device.StatusLimit, sends: 1025},
		// 10 ms each until 100 s have passed, then 64 more, and the one that passed 100 s.
		{name: "source fault without a TXFIFO", fault: true, noFIFO: true, status: 1, sends: 10000 + 65},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(cfg *Config) { cfg.TXFIFO = !c.noFIFO })
			r.start(0, 0, dst, 100)
			r.quick = c.noFIFO
			sends := 0
			for r.ends == 0 {
				all := r.blocks()
				if r.ends > 0 {
					break
				}
				if len(all) == 0 {
					r.now = r.fw.Deadline()
					r.fw.Clock(r.now)
					r.fw.Expire(r.now)
					continue
				}
				b := all[0]
				if sends++; sends > 20000 {
					t.Fatal("does not end")
				}
				if c.fault {
					r.fw.SourceFault(r.now, b.ID)
					continue
				}
				r.sent(b)
				if c.code != 0 {
					r.reply(b, c.code)
				}
				if c.rapfs > 0 {
					r.rapf(b)
				}
			}
			if r.done[0].Done != device.DoneFailed || r.done[0].Status != c.status || sends != c.sends {
				t.Errorf("done %d with status %d after %d sendings, want status %d after %d", r.done[0].Done, r.done[0].Status, sends, c.status, c.sends)
			}
			if r.fw.Deadline() < 1<<62 || len(r.fw.Transactions()) != 0 {
				t.Error("it has left state behind")
			}
		})
	}
}

// The sequence number of an ID advances with every use and every retransmission, modulo 2^14, and
// belongs to the destination node.
func TestSequenceNumbers(t *testing.T) {
	r := newRig(t, func(c *Config) { c.IDs = 1 })
	r.quick = true
	last := device.Sequence(0)
	for i := range 40000 {
		r.start(0, 0, dst, 10)
		b := r.one()
		if want := device.Sequence((i + 1) % (1 << 14)); b.Seq != want || b.First != want {
			t.Fatalf("use %d: sequence number %d, first %d, want %d", i, b.Seq, b.First, want)
		}
		last = b.Seq
		r.ack(b)
	}
	// To another node: never the same number again, because a RAPF of this node does not name its
	// destination; and new for a receiver that has received nothing yet.
	r.start(0, 0, dst, 10, func(d *device.Descriptor) { d.DstNode = 9 })
	b := r.one()
	if b.Seq == last || !b.Seq.Newer(0) {
		t.Errorf("to another node: %d after %d", b.Seq, last)
	}
	r.ack(b)
	r.start(0, 0, dst, 10)
	if b := r.one(); !b.Seq.Newer(last) {
		t.Errorf("back to the first: %d after %d", b.Seq, last)
	}
}

// Whatever is not sent or not received, the next number is newer to the receiver, within half the
// number space: otherwise all blocks of the ID would be dropped.
func TestSequenceNumbersStayNew(t *testing.T) {
	for _, c := range []struct {
		name  string
		sent  bool // it is sent and not answered
		other bool // another node answers in between
	}{{"source never readable", false, false}, {"nobody answers", true, false}, {"another node answers", false, true}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(cfg *Config) { cfg.IDs = 1 })
			r.quick = true
			r.start(0, 0, dst, 10)
			b := r.one()
			r.ack(b)
			known := b.Seq
			for range 30000 {
				r.start(0, 0, dst, 10)
				b := r.one()
				if !b.Seq.Newer(known) {
					t.Fatalf("sequence number %d, and the receiver has %d", b.Seq, known)
				}
				if c.sent {
					r.sent(b)
				} else {
					r.fw.SourceFault(r.now, b.ID)
				}
				r.start(0, 0, dst, 0, func(d *device.Descriptor) { d.Abort = true })
				r.none()
				if c.other {
					r.start(0, 0, dst, 10, func(d *device.Descriptor) { d.DstNode = 9 })
					r.ack(r.one())
				}
			}
		})
	}
}

// An answer counts only for a live block, from its node, with its current sequence number (001
// §4.4).
func TestAnswersThatCount(t *testing.T) {
	for _, c := range []struct {
		name    string
		node    device.NodeID
		id      device.TransactionID
		seq     device.Sequence
		sending bool
		code    device.Code
		counter device.Counter
		end     uint32 // done
		status  uint8
		again   bool
	}{
		{name: "positive", node: target, seq: 1, counter: device.Acks, end: device.DoneCompleted},
		{name: "former number", node: target, seq: 0, counter: device.AckStale, end: device.DoneOngoing},
		{name: "later number", node: target, seq: 2, counter: device.AckStale, end: device.DoneOngoing},
		{name: "another node", node: 3, seq: 1, counter: device.AckStale, end: device.DoneOngoing},
		{name: "an unused ID", node: target, id: 1, seq: 1, counter: device.AckStale, end: device.DoneOngoing},
		{name: "no such ID", node: target, id: 1024, seq: 1, counter: device.MsgDropped, end: device.DoneOngoing},
		{name: "not sent yet", node: target, seq: 1, sending: true, counter: device.AckStale, end: device.DoneOngoing},
		{name: "page fault", node: target, seq: 1, code: 1, counter: device.Nacks0 + 1, end: device.DoneOngoing},
		{name: "decode", node: target, seq: 1, code: 2, counter: device.Nacks0 + 2, end: device.DoneFailed, status: 2},
		{name: "no context", node: target, seq: 1, code: 3, counter: device.Nacks0 + 3, end: device.DoneOngoing, again: true},
		{name: "corrupt", node: target, seq: 1, code: 4, counter: device.Nacks0 + 4, end: device.DoneOngoing, again: true},
		{name: "domain", node: target, seq: 1, code: 5, counter: device.Nacks0 + 5, end: device.DoneFailed, status: 5},
		{name: "reserved", node: target, seq: 1, code: 6, counter: device.Nacks0 + 6, end: device.DoneFailed, status: 6},
		{name: "buffer full", node: target, seq: 1, code: 7, counter: device.Nacks0 + 7, end: device.DoneOngoing, again: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.start(0, 0, dst, 10)
			b := r.one()
			if !c.sending {
				r.sent(b)
			}
			r.fw.Ack(r.now, c.node, mailbox.Ack{Transaction: c.id, Code: c.code, Sequence: c.seq})
			if again := len(r.blocks()) > 0; again != c.again {
				t.Errorf("retransmitted: %v", again)
			}
			if r.counts[c.counter] != 1 || r.done[0].Done != c.end || r.done[0].Status != c.status {
				t.Errorf("%s is %d; done %d, status %d", c.counter, r.counts[c.counter], r.done[0].Done, r.done[0].Status)
			}
		})
	}
}

// Which retransmission requests are obeyed (messages.md 2).
func TestRAPFsThatCount(t *testing.T) {
	const theirs, strange = device.PDID(8), device.PDID(9)
	for _, c := range []struct {
		name    string
		fault   bool // at the source
		src     device.NodeID
		m       mailbox.RAPF
		counter device.Counter // counts it besides rapf_rx, 0 for none: it is obeyed
		end     uint32
		status  uint8
	}{
		{name: "target", src: target, m: mailbox.RAPF{Generation: gen, PDID: theirs, Claimed: theirs, Sequence: 1}},
		{name: "target, to end it", src: target, m: mailbox.RAPF{Generation: gen, PDID: theirs, Claimed: theirs, Sequence: 1, Fail: true}, end: device.DoneFailed, status: 2},
		{name: "own, source fault", fault: true, src: own, m: mailbox.RAPF{Generation: gen, PDID: pdid, Claimed: pdid, Sequence: 1}},
		{name: "own, no source fault", src: own, m: mailbox.RAPF{Generation: gen, PDID: pdid, Claimed: pdid, Sequence: 1}, counter: device.RAPFDenied},
		{name: "target, another domain", src: target, m: mailbox.RAPF{Generation: gen, PDID: strange, Claimed: strange, Sequence: 1}, counter: device.RAPFDenied},
		{name: "target, the source's domain", src: target, m: mailbox.RAPF{Generation: gen, PDID: pdid, Claimed: pdid, Sequence: 1}, counter: device.RAPFDenied},
		{name: "another node", src: 3, m: mailbox.RAPF{Generation: gen, PDID: theirs, Claimed: theirs, Sequence: 1}, counter: device.RAPFDenied},
		{name: "claims another domain", src: target, m: mailbox.RAPF{Generation: gen, PDID: strange, Claimed: theirs, Sequence: 1}, counter: device.RAPFDenied},
		{name: "claims a domain wrongly", src: target, m: mailbox.RAPF{Generation: gen, PDID: theirs, Claimed: strange, Sequence: 1}, counter: device.RAPFDenied},
		{name: "former number", src: target, m: mailbox.RAPF{Generation: gen, PDID: theirs, Claimed: theirs, Sequence: 0}, counter: device.RAPFStale},
		{name: "former number, to end it", src: target, m: mailbox.RAPF{Generation: gen, PDID: theirs, Claimed: theirs, Sequence: 0, Fail: true}, counter: device.RAPFStale},
		{name: "an unused ID", src: target, m: mailbox.RAPF{Generation: gen, PDID: theirs, Claimed: theirs, Transaction: 1, Sequence: 1}, counter: device.RAPFStale},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.start(0, 0, dst, 10, func(d *device.Descriptor) { d.DstPDID = theirs })
			b := r.one()
			if c.fault {
				r.fw.SourceFault(r.now, b.ID)
			} else {
				r.sent(b)
				r.reply(b, device.CodeSlaveError)
			}
			r.none()
			r.fw.RAPF(r.now, c.src, c.m)
			obeyed := c.counter == 0 && c.status == 0
			if again := len(r.blocks()) > 0; again != obeyed {
				t.Errorf("retransmitted: %v", again)
			}
			if c.end == 0 {
				c.end = device.DoneOngoing
			}
			if r.counts[device.RAPFRx] != 1 || c.counter != 0 && r.counts[c.counter] != 1 || r.done[0].Done != c.end || r.done[0].Status != c.status {
				t.Errorf("counted %d; done %d, status %d", r.counts[c.counter], r.done[0].Done, r.done[0].Status)
			}
		})
	}
	r := newRig(t)
	if r.fw.RAPF(0, target, mailbox.RAPF{Transaction: 1024}); r.counts[device.MsgDropped] != 1 {
		t.Error("an invalid ID is not counted as dropped")
	}
}

// A block that the PLDMA is still reading is not sent to it again.
func TestRetransmissionBit(t *testing.T) {
	for _, off := range []bool{false, true} {
		r := newRig(t, func(c *Config) { c.Options.NoRetransmissionBit = off })
		r.start(0, 0, dst, 10)
		b := r.one()
		r.rapf(b) // from a sender that guesses right
		if n := len(r.blocks()); n != 0 && !off || n != 1 && off {
			t.Fatalf("off %v: %d blocks while the first is being read", off, n)
		}
		r.sent(b)
		if off {
			continue
		}
		if again := r.one(); again.Seq != 2 {
			t.Errorf("sequence number %d", again.Seq)
		}
	}
}

// Transfers aborted before their answers arrive leave no receiver behind: even an answer that is
// too late for its block reports the receiver's number.
func TestLateAnswersKeepTheNumbersTogether(t *testing.T) {
	r := newRig(t, func(c *Config) { c.IDs = 1 })
	r.quick = true
	newest := device.Sequence(0) // at the receiver
	for i := range 3 * device.SequenceMask {
		r.start(0, 0, dst, 10)
		b := r.one()
		if i > 0 && !b.Seq.Newer(newest) {
			t.Fatalf("transfer %d has number %d, old to a receiver that has seen %d", i, b.Seq, newest)
		}
		newest = b.Seq
		r.sent(b)
		r.start(0, 0, dst, 10, func(d *device.Descriptor) { d.Abort = true })
		r.none()
		r.reply(b, device.CodeAck)
	}
	if r.counts[device.AckStale] != uint64(3*device.SequenceMask) || r.counts[device.Acks] != 0 {
		t.Errorf("%d late answers, %d in time", r.counts[device.AckStale], r.counts[device.Acks])
	}
}

// An answer to a number that was never sent has no effect.
func TestAnswersOfNothing(t *testing.T) {
	r := newRig(t, func(c *Config) { c.IDs = 1 })
	r.start(0, 0, dst, 10)
	b := r.one()
	r.ack(b)
	for _, off := range []device.Sequence{1, 100, 5000, 8000, 8191, 8192, 16000} {
		bad := b
		bad.Seq = (b.Seq + off) & device.SequenceMask
		r.reply(bad, device.CodeAck)
	}
	r.start(0, 0, dst, 10)
	if next := r.one(); next.Seq != b.Seq.Next() {
		t.Errorf("after forged answers number %d follows %d", next.Seq, b.Seq)
	}
}

// Numbers that were not sent are reused; even so, no two blocks of an ID may have the same first
// number, which tells the receiver that it has already acknowledged a block.
func TestFirstNumbersOfBlocksDiffer(t *testing.T) {
	r := newRig(t, func(c *Config) { c.IDs = 1 })
	r.quick = true
	fault := func(b wire.Block) wire.Block { // its source cannot be read: it is to be retransmitted
		r.fw.SourceFault(r.now, b.ID)
		r.none()
		r.fw.RAPF(r.now, own, mailbox.RAPF{Generation: gen, PDID: pdid, Claimed: pdid, Transaction: b.ID, Sequence: b.Seq})
		return r.one()
	}
	guard := func(b wire.Block) wire.Block {
		r.fw.SourceFault(r.now, b.ID)
		r.expire()
		return r.one()
	}
	abort := func(b wire.Block) {
		r.fw.SourceFault(r.now, b.ID)
		r.start(0, 0, dst, 10, func(d *device.Descriptor) { d.Abort = true })
		r.none()
	}
	// The ID's common count is far ahead, because of blocks to another node.
	for range maxJump + 2000 {
		r.start(0, 0, dst, 10, func(d *device.Descriptor) { d.DstNode = 3 })
		r.ack(r.one())
	}
	// One block that takes a number and is aborted, one whose source becomes readable after so
	// many attempts that its numbers repeat, and one that is simply sent.
	r.start(0, 0, dst, 10)
	abort(r.one())
	r.start(0, 0, dst, 10)
	b := r.one()
	for i, last := 0, b.Seq; b.Seq == last || b.Seq.Newer(last); i++ {
		if last = b.Seq; i%60 == 59 {
			b = fault(b)
		} else {
			b = guard(b)
		}
		if i > 2*maxJump {
			t.Fatal("its numbers do not repeat")
		}
	}
	r.ack(b)
	acknowledged := b.First
	for range 100 {
		r.start(0, 0, dst, 10)
		if b = r.one(); b.First == acknowledged {
			t.Fatalf("number %d: its first number is %d, that of an acknowledged block", b.Seq, b.First)
		}
		r.ack(b)
	}
}

// The displayed states of 001 table 3.1, and the acknowledged blocks.
func TestStates(t *testing.T) {
	r := newRig(t)
	r.start(0, 0, dst, 3*device.BlockSize)
	var b [3]wire.Block
	copy(b[:], r.blocks())
	state := func(name, want string, acked uint32) {
		t.Helper()
		for _, i := range r.fw.Transactions() {
			if i.Block == 1 && i.State == want && i.Acked == acked && i.Blocks == 3 {
				return
			}
		}
		t.Errorf("%s: %+v, want %s and %d acknowledged", name, r.fw.Transactions(), want, acked)
	}
	x := &b[1]
	state("not sent yet", "issued", 0)
	r.ack(b[0])
	r.sent(*x)
	state("sent", "issued", 1)
	r.reply(*x, device.CodeSlaveError)
	r.none()
	state("page fault", "paused", 1)
	r.rapf(*x)
	*x = r.one()
	state("asked for again", "retransmitted", 1)
	for range 2 {
		r.sent(*x)
		r.reply(*x, device.CodeNoContext)
		*x = r.one()
		state("refused", "retransmitted", 1)
	}
	r.sent(*x)
	r.reply(*x, device.CodeNoContext)
	r.none()
	state("refused three times", "backoff", 1)
	r.expire()
	*x = r.one()
	state("after back-off", "retransmitted", 1)
	r.sent(*x)
	r.expire()
	*x = r.one()
	state("after a time-out", "retransmitted", 1)
	if r.counts[device.Timeouts] != 1 {
		t.Errorf("%d time-outs", r.counts[device.Timeouts])
	}
	r.ack(*x)
	if l := r.fw.Transactions(); len(l) != 1 || l[0].Block != 2 || l[0].State != "issued" || l[0].Acked != 2 {
		t.Errorf("%+v", l)
	}
}
