package hostile

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/rdma"
)

// victims are two threads of a tree, one on each node, with a page on each.
type victims struct {
	t       *testing.T
	threads [2]*gsas.Thread
	pages   [2]gsas.Address
	adds    uint64
}

func newVictims(t *testing.T, w *world) *victims {
	t.Helper()
	v := &victims{t: t}
	for i := range v.threads {
		ep, err := rdma.Attach(w.ctx(), rdma.Options{Socket: w.socketOf(device.NodeID(i)), Node: device.NodeID(i), Group: "victims", Threads: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ep.Close() })
		if i == 0 {
			v.threads[i], err = gsas.NewThread(ep)
		} else {
			v.threads[i], err = gsas.Join(ep, v.threads[0].Token())
		}
		if err == nil {
			v.pages[i], err = v.threads[0].Alloc(w.ctx(), device.NodeID(i), 1, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return v
}

// add adds to both pages: each value is the one that the victims have left there.
func (v *victims) add(w *world) {
	v.t.Helper()
	for _, th := range v.threads {
		for _, a := range v.pages {
			if old, err := th.FetchAdd(w.ctx(), a, 1); err != nil || old != v.adds {
				v.t.Fatalf("the victims' word at %v is %d after %d adds, %v", a, old, v.adds, err)
			}
		}
		v.adds++
	}
}

// thread makes a thread of a raw attachment, with a tree of its own.
func (r *raw) thread() attach.Threaded {
	r.t.Helper()
	msg := (&attach.Thread{Product: "liar"}).Append(nil)
	if err := r.Conn.Send(msg); err != nil {
		r.t.Fatal(err)
	}
	var b [attach.MaxMessage]byte
	n, fds, err := r.Receive(r.w.ctx(), b[:])
	if err != nil {
		r.t.Fatal(err)
	}
	fds.Close()
	th, err := attach.DecodeThreaded(b[:n])
	if err != nil {
		refused, _ := attach.DecodeRefused(b[:n])
		r.t.Fatal(err, refused)
	}
	return th
}

// A thread writes what it likes into its packetizer: headers of the victims' threads and tree, all
// operations and lengths, any destination, and into RUNG and the counts of its mailbox. Pages of another
// tree do not change, and answers go to those who have asked.
func TestForgedRequests(t *testing.T) { onEach(t, forgedRequests) }

func forgedRequests(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	v := newVictims(t, w)
	v.add(w)
	liar := w.raw(attach.Hello{Group: "liar", Threads: true})
	own := liar.thread()
	port := liar.Thread(int(own.Index))
	rnd := rand.New(rand.NewPCG(32, 1))
	ops := []atomics.Op{
		atomics.Read64, atomics.Read256, atomics.Write64, atomics.Write128, atomics.Write256, atomics.FetchAdd, atomics.Swap,
		atomics.CAS, atomics.FetchOr, atomics.CAS128, atomics.CWrite256, atomics.Alloc, atomics.Free, atomics.Spawn, atomics.Join, atomics.Alive,
	}
	statuses := map[atomics.Status]int{}
	var numbers [device.PktzChannels][2]uint16
	for round := range 5_000 {
		victim := v.threads[rnd.IntN(2)]
		page := v.pages[rnd.IntN(2)]
		words := make([]uint64, 1+rnd.IntN(device.PktzMaxWords))
		for i := range words {
			words[i] = rnd.Uint64()
		}
		op := ops[rnd.IntN(len(ops))]
		if rnd.IntN(4) > 0 { // a request of the right form for the victims' words
			words = words[:1]
			words = append(words, uint64(page)+8*uint64(rnd.IntN(8)))
			for range op.Args() {
				words = append(words, rnd.Uint64())
			}
		}
		words[0] = atomics.Wired(atomics.Thread(victim.ID()), atomics.Protection(victim.Tree()), atomics.Tag(rnd.Uint32())) | uint64(op)<<56
		node, _ := page.Node()
		box := uint8(device.MailboxGSAS)
		var generation device.Generation
		switch rnd.IntN(20) {
		case 0:
			node = device.NodeID(rnd.Uint32())
		case 1:
			box, generation = uint8(rnd.Uint32()), device.Generation(rnd.Uint32()) // also the victims' mailboxes
		case 2:
			liar.Pages.RingThread(rnd.IntN(8))
		}
		c := rnd.IntN(device.PktzChannels)
		number := &numbers[c][node&1]
		if *number++; rnd.IntN(50) == 0 {
			*number = uint16(rnd.Uint32()) // if it is old, the unit answers nothing until it has passed
		}
		for ctx := w.ctx(); port.SendStatus(c) == device.PktzBusy; runtime.Gosched() {
			if err := ctx.Err(); err != nil {
				t.Fatal("the packetizer is not taken: ", err)
			}
		}
		port.SendTo(c, packetizer.Destination(node, box, generation), *number, words)
		liar.Pages.RingThread(int(own.Index))
		liar.kick()
		var m attach.Mail
		for port.HasMail() {
			port.TakeMail(&m)
			source := mailbox.DecodeSource(m.Source)
			if source.PDID != device.PDIDFirmware {
				t.Fatalf("a message of PDID %d in the mailbox of a thread", source.PDID)
			}
			if a, err := atomics.DecodeAnswer(m.Words[:source.Words]); err == nil {
				statuses[a.Status]++
			}
		}
		if round%500 == 0 {
			v.add(w)
		}
	}
	v.add(w)
	t.Logf("answers by status: %v", statuses)
	if statuses[atomics.Denied] == 0 || statuses[atomics.BadRequest] == 0 {
		t.Error("no request for the victims' words was denied, or none was malformed")
	}
	b.fine()
}

// Tokens are not guessed, and messages of threads that are malformed, or that name what does not exist,
// are refused with their code. The attachment and the others go on.
func TestForgedTokens(t *testing.T) { onEach(t, forgedTokens) }

func forgedTokens(t *testing.T, w *world) {
	v := newVictims(t, w)
	liar := w.raw(attach.Hello{Group: "liar", Threads: true})
	plain := w.raw(attach.Hello{Group: "plain"})
	token := attach.Token(v.threads[0].Token())
	ask := func(r *raw, msg []byte) attach.Code {
		t.Helper()
		if err := r.Conn.Send(msg); err != nil {
			t.Fatal(err)
		}
		var b [attach.MaxMessage]byte
		n, fds, err := r.Receive(w.ctx(), b[:])
		if err != nil {
			t.Fatal(err)
		}
		fds.Close()
		if e, err := attach.DecodeRefused(b[:n]); err == nil {
			return e.Code
		}
		return 0
	}
	rnd := rand.New(rand.NewPCG(32, 2))
	for i := range 500 {
		guess := token
		guess[rnd.IntN(len(guess))] ^= byte(1 + rnd.IntN(255)) // even a near one
		if code := ask(liar, (&attach.Thread{Token: guess}).Append(nil)); code != attach.CodeNotFound {
			t.Fatalf("guess %d: code %d, want %d", i, code, attach.CodeNotFound)
		}
	}
	short := (&attach.Thread{}).Append(nil)[:95]
	short[4] = 95
	for name, c := range map[string]struct {
		r    *raw
		msg  []byte
		code attach.Code
	}{
		"a short thread":              {liar, short, attach.CodeProtocol},
		"an unthread of no thread":    {liar, (&attach.Unthread{Index: 3}).Append(nil), attach.CodeNotFound},
		"an unthread beyond the last": {liar, (&attach.Unthread{Index: 200}).Append(nil), attach.CodeProtocol},
		"a thread without pages":      {plain, (&attach.Thread{}).Append(nil), attach.CodeUnsupported},
		"an unthread without pages":   {plain, (&attach.Unthread{}).Append(nil), attach.CodeUnsupported},
	} {
		if code := ask(c.r, c.msg); code != c.code {
			t.Errorf("%s: code %d, want %d", name, code, c.code)
		}
	}
	v.add(w)
}

// A thread that asks without end, and never takes an answer, does not keep others from the unit.
func TestFloodOfRequests(t *testing.T) { onEach(t, floodOfRequests) }

func floodOfRequests(t *testing.T, w *world) {
	v := newVictims(t, w)
	liar := w.raw(attach.Hello{Group: "liar", Threads: true})
	own := liar.thread()
	port := liar.Thread(int(own.Index))
	over, ended := make(chan struct{}), make(chan struct{})
	var sent atomic.Int64
	go func() {
		defer close(ended)
		for number := uint16(1); ; number++ {
			for c := range device.PktzChannels {
				r := atomics.Request{Op: atomics.Alloc, Address: atomics.At(device.NodeID(c%2), 0), Args: [atomics.MaxArgs]uint64{1 << 14}}
				if number%2 == 0 {
					r = atomics.Request{Op: atomics.FetchAdd, Address: v.pages[c%2]}
				}
				var words [device.PktzMaxWords]uint64
				n := r.Encode(words[:])
				if port.SendTo(c, packetizer.Destination(device.NodeID(c%2), device.MailboxGSAS, 0), number, words[:n]) {
					sent.Add(1)
				}
			}
			liar.Pages.RingThread(int(own.Index))
			liar.kick()
			select {
			case <-over:
				return
			default:
			}
		}
	}()
	for v.adds < 400 || sent.Load() < 400 {
		v.add(w)
	}
	close(over)
	<-ended
	t.Logf("%d requests beside %d adds of the victims", sent.Load(), 2*v.adds)
	trees, err := w.GSAS(w.ctx())
	if err != nil {
		t.Fatal(err)
	}
	for _, tree := range trees {
		if tree.SizeBytes > 1<<30 {
			t.Errorf("tree %+v has more than its user's quota", tree)
		}
	}
	if _, err := w.Domains(w.ctx(), control.AllNodes); err != nil {
		t.Error(err)
	}
}
