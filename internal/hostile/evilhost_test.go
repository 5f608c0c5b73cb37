package hostile

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/tree"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/link"
	files "github.com/exanet/pfd/link/hosts"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/soc/wire"
)

// repeat is after what time an evilHost sends again what has no answer: a link that is slow may end.
const repeat = time.Second

// evilHost is a host with a certificate of the cluster that sends what it likes. It has node 0.
type evilHost struct {
	t       *testing.T
	links   *link.Links
	answers chan wire.Frame
	told    chan tree.Message
	number  uint16
}

func newEvilHost(t *testing.T, etc string, list []files.Host) *evilHost {
	t.Helper()
	e := &evilHost{t: t, answers: make(chan wire.Frame, 1024), told: make(chan tree.Message, 1024)}
	var hosts []link.Host
	for _, h := range list {
		nodes := h.NodeRange()
		hosts = append(hosts, link.Host{Name: h.Name, Address: h.Address, Nodes: link.Range{First: nodes[0], Last: nodes[1]}, PDIDs: h.PDIDRange()})
	}
	e.links = link.New(link.Config{
		Identity: link.Identity{Nodes: hosts[0].Nodes, PDIDs: hosts[0].PDIDs},
		Told: func(_ string, b []byte) {
			if m, err := tree.Decode(b); err == nil {
				e.told <- m
			}
		},
		Changed: func(host string, s link.State) {
			if s == link.Up {
				e.tell(host, tree.Message{Kind: tree.Begin, Token: tree.Token{15: 1}})
			}
		},
		May: func(string, atomics.Protection) bool { return true },
	})
	var pem [3][]byte
	for i, name := range []string{list[0].Name + ".pem", list[0].Name + ".key", "ca.pem"} {
		var err error
		if pem[i], err = os.ReadFile(filepath.Join(etc, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.links.SetTable(link.Table{
		Cluster: "hostile", Self: list[0].Name, Hosts: hosts, TLS: true, Credentials: &link.Credentials{Certificate: pem[0], Key: pem[1], CA: pem[2]},
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	t.Cleanup(func() { cancel(); workers.Wait() })
	workers.Go(func() { _ = e.links.Run(ctx, e) })
	workers.Go(func() { // as exanet-hostd does
		for {
			select {
			case <-ctx.Done():
				return
			case w := <-e.links.Wants():
				to := hosts[slices.IndexFunc(hosts, func(h link.Host) bool { return h.Name == w.Host })]
				c, err := net.Dial("tcp", to.Address)
				if err != nil {
					e.links.Failed(w.Host, false, err.Error())
				} else {
					e.links.Take(c, w.Host)
				}
			}
		}
	})
	return e
}

// Arrive keeps messages to threads.
func (e *evilHost) Arrive(frames []*wire.Frame, done, _ func()) bool {
	for _, f := range frames {
		if f.Kind == wire.Message && f.SrcInterface == device.MailboxGSAS {
			e.answers <- *f
		}
	}
	done()
	return true
}

func (*evilHost) LinkReady(_, _ device.NodeID, _ wire.Ready) {}
func (*evilHost) LinkUp(_, _ device.NodeID)                  {}
func (*evilHost) Drain(_, _ device.NodeID, _ bool)           {}
func (*evilHost) Underway(_, _ device.NodeID, f func(int))   { f(0) }
func (*evilHost) Gone(_, _ device.NodeID)                    {}
func (e *evilHost) tell(host string, m tree.Message)         { b := m.Encode(); _ = e.links.Tell(host, b[:]) }
func (e *evilHost) send(node device.NodeID, r atomics.Request) {
	f := &wire.Frame{Header: wire.Header{
		Kind: wire.Message, SrcInterface: uint8(r.Thread.Interface()), SrcPDID: device.PDIDFirmware, SrcGeneration: 7,
		DstNode: node, DstMailbox: device.MailboxGSAS, Remaining: uint32(e.number),
	}}
	f.MessageLen = uint8(r.Encode(f.Message[:]))
	e.links.Send(f)
	e.links.Flush()
}

// request sends a request in the name of a tree, and then one of its own tree to the same node. It returns
// the answer to the first, or false if that of the second comes alone.
func (e *evilHost) request(node device.NodeID, p atomics.Protection, op atomics.Op, at gsas.Address, args ...uint64) (answer atomics.Answer, ok bool) {
	e.t.Helper()
	e.number++
	tag := atomics.TagOf(0, e.number)
	r := atomics.Request{Thread: atomics.ThreadOf(0, 40), Protection: p, Tag: tag, Op: op, Address: atomics.Address(at)}
	copy(r.Args[:], args)
	own := atomics.ThreadOf(0, 41)
	send := func() {
		e.send(node, r)
		e.send(node, atomics.Request{Thread: own, Protection: atomics.Protection(own), Tag: tag, Op: atomics.Read64, Address: atomics.At(node, 1<<47)})
	}
	await(e, e.answers, send, func(f wire.Frame) bool {
		a, err := atomics.DecodeAnswer(f.Message[:f.MessageLen])
		switch {
		case err != nil || a.Number != e.number || f.SrcNode != node:
		case f.DstMailbox == 40 && a.Status != atomics.Waiting:
			answer, ok = a, true
		case f.DstMailbox == 41:
			if a.Status != atomics.BadAddress {
				e.t.Fatalf("a page that is not there: %v", a.Status)
			}
			return true
		}
		return false
	})
	return answer, ok
}

// ask asks the pfd of another host for a tree, and returns its answer.
func (e *evilHost) ask(host string, m tree.Message) tree.Message {
	e.t.Helper()
	e.number++
	m.Kind, m.Number = tree.Asked, uint32(e.number)+1<<20
	return await(e, e.told, func() { e.tell(host, m) }, func(a tree.Message) bool { return a.Number == m.Number && a.Tree == m.Tree })
}

// await sends until an answer comes.
func await[T any](e *evilHost, from chan T, send func(), answers func(T) bool) (got T) {
	e.t.Helper()
	for range patience / repeat {
		send()
		timer := time.After(repeat)
		for again := false; !again; {
			select {
			case got = <-from:
				if answers(got) {
					return got
				}
			case <-timer:
				again = true
			}
		}
	}
	e.t.Fatal("no answer")
	return got
}

// A host with a valid certificate reads, writes, allocates and frees nothing of trees that none of its threads has
// joined, of another host and of a third one, and is not told their tokens; all threads of these trees
// go on. By the token it may join.
func TestHostThatLiesAboutTrees(t *testing.T) {
	if os.Getenv("PFD_HOSTS") == "" {
		t.Skip("part of make hosts (PFD_HOSTS=1)")
	}
	etc, list := newCluster(t, "a", "b", "c")
	groups := filepath.Join(etc, "all-groups")
	if err := os.WriteFile(groups, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b, c := startHost(t, 0, etc, list[1], groups), startHost(t, 0, etc, list[2], groups)
	e := newEvilHost(t, etc, list)
	b.linkedTo("c")
	b.linkedTo("a")
	c.linkedTo("a")
	thread := func(w *world, node device.NodeID, token gsas.Token) *gsas.Thread {
		ep, err := rdma.Attach(w.ctx(), rdma.Options{Socket: w.socket(), Node: node, Threads: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ep.Close() })
		begin := gsas.NewThread
		if token != (gsas.Token{}) {
			begin = func(ep *rdma.Endpoint) (*gsas.Thread, error) { return gsas.Join(ep, token) }
		}
		th, err := begin(ep)
		if err != nil {
			t.Fatal(err)
		}
		return th
	}
	root := thread(b, 1, gsas.Token{})
	third := thread(c, 2, gsas.Token{})
	guest := thread(b, 1, third.Token())
	type word struct {
		owner string
		node  device.NodeID
		th    []*gsas.Thread
		at    gsas.Address
	}
	words := []*word{{"b", 1, []*gsas.Thread{root}, 0}, {"c", 1, []*gsas.Thread{guest, third}, 0}, {"c", 2, []*gsas.Thread{third, guest}, 0}}
	for _, w := range words {
		var err error
		if w.at, err = w.th[0].Alloc(b.ctx(), w.node, 1, 0); err != nil {
			t.Fatal(err)
		}
	}
	adds := uint64(0)
	add := func() { // each of the threads finds what the others have left
		t.Helper()
		for _, w := range words {
			for i, th := range w.th {
				if old, err := th.FetchAdd(b.ctx(), w.at, 1); err != nil || old != uint64(len(w.th))*adds+uint64(i) {
					t.Fatalf("the word of tree %#x on node %d is %d after %d rounds, %v", th.Tree(), w.node, old, adds, err)
				}
			}
		}
		adds++
	}
	attack := func() {
		t.Helper()
		for _, w := range words {
			for _, r := range []struct {
				op   atomics.Op
				args []uint64
			}{
				{atomics.Read64, nil}, {atomics.Write64, []uint64{0xbad}}, {atomics.FetchAdd, []uint64{1}}, {atomics.CAS, []uint64{adds, 0xbad}},
				{atomics.CWrite256, []uint64{adds, 0xbad, 0xbad, 0xbad, 0xbad}}, {atomics.Alloc, []uint64{1, 0}}, {atomics.Free, nil}, {atomics.Alive, []uint64{uint64(root.ID())}},
			} {
				if a, ok := e.request(w.node, atomics.Protection(w.th[0].Tree()), r.op, w.at, r.args...); ok {
					t.Errorf("%v in tree %#x on node %d is answered: %v %x", r.op, w.th[0].Tree(), w.node, a.Status, a.Values)
				}
			}
		}
	}
	add()
	attack()
	add()
	var proof tree.Token
	for _, w := range words {
		p, token := atomics.Protection(w.th[0].Tree()), tree.Token(w.th[0].Token())
		a := e.ask(w.owner, tree.Message{Tree: p})
		if a.Kind != tree.Known || a.Token == token {
			t.Errorf("asked with no token: %+v", a)
		}
		proof = a.Token
		for _, token := range []tree.Token{{}, proof, {15: 1}} {
			if a := e.ask(w.owner, tree.Message{Tree: p, Token: token, Threads: 1}); a.Kind != tree.Gone || a.Token != token {
				t.Errorf("threads with token %x: %+v", token, a)
			}
		}
		// The word of a host that does not own the tree says nothing.
		e.tell("b", tree.Message{Kind: tree.Known, Tree: p, Token: proof, UID: uint32(os.Getuid()), Threads: 1, Number: a.Number})
	}
	attack()
	add()
	for _, w := range words {
		p := atomics.Protection(w.th[0].Tree())
		if a := e.ask(w.owner, tree.Message{Tree: p, Token: tree.Token(w.th[0].Token()), Threads: 1}); a.Kind != tree.Known || a.Token == tree.Token(w.th[0].Token()) {
			t.Errorf("asked with the token: %+v", a)
		}
		b.until("a host that has shown the token reads", func() bool { // a third host asks the owner first
			a, ok := e.request(w.node, p, atomics.Read64, w.at)
			return ok && a.Status == atomics.OK && a.Values[0] == uint64(len(w.th))*adds
		})
		e.ask(w.owner, tree.Message{Tree: p, Token: tree.Token(w.th[0].Token())})
	}
	add()
	for _, th := range []*gsas.Thread{root, guest, third} {
		if err := th.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, w := range []*world{b, c} {
		w.until("its trees end", func() bool {
			trees, err := w.GSAS(w.ctx())
			return err == nil && len(trees) == 0
		})
	}
}
