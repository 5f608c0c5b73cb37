package dht_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/dht"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/internal/sim"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/soc"
	socgsas "github.com/exanet/pfd/soc/gsas"
	"github.com/exanet/pfd/soc/link"
)

// simulated is the global address space of simulated nodes, whose links lose, double and delay messages,
// for clients of one tree. Each client is a goroutine of a synctest bubble: while all of them wait, the world
// goes on, and the clock of the bubble with it.
type simulated struct {
	world   *sim.World
	random  *rand.Rand
	nodes   []*simulatedNode
	clients []*simulatedThread
	root    atomics.Protection

	mu      sync.Mutex
	last    int64 // number of the last event of a history
	history []porcupine.Operation
	err     error
}

type simulatedNode struct {
	*sim.Node
	id    device.NodeID
	words map[uint64]*[atomics.MaxValues]uint64 // by GSAS_BACK / 32
	next  uint64                                // page that was not allocated yet
	has   bool                                  // the tree's directory is allocated
}

// simulatedThread is a thread, as a dht.Memory.
type simulatedThread struct {
	s       *simulated
	index   int
	node    *simulatedNode
	id      atomics.Thread
	numbers map[device.NodeID]uint16
	life    int // operations until it dies, negative: it does not
	answer  chan atomics.Answer

	// The rest is changed while all others wait.
	asks    bool
	request atomics.Request
	waits   bool // for the answer
	over    bool // it has died, or is done
}

const (
	simPages    = 1024 // of each node
	simAskAgain = int64(20e6)
	simLook     = int64(100e3) // while a client sleeps
)

var errDead = errors.New("the client has died")

func newSimulated(seed uint64, clients int) (*simulated, error) {
	random := rand.New(rand.NewPCG(seed, 0x6468))
	pick := func(n int) int { return random.IntN(n) }
	w, err := sim.New(sim.Config{
		Seed: seed, Nodes: 2, Memory: int64(pick(2) * pick(20_000)),
		Injection: link.Injection{
			LoseRead: pick(2) * pick(100_000), LoseAnswer: pick(2) * pick(100_000), Duplicate: pick(2) * pick(300_000),
			Delay: pick(2) * pick(300_000), DelayMax: int64(1 + pick(30_000_000)),
		},
	})
	if err != nil {
		return nil, err
	}
	s := &simulated{world: w, random: random, root: atomics.Protection(atomics.ThreadOf(0, device.MailboxThread))}
	set := func(n *simulatedNode, at uint32, v uint64) {
		err = errors.Join(err, n.Window(device.PL).Write64(at, v))
	}
	enter := func(n *simulatedNode, page uint64, count int, back uint64, present bool) {
		set(n, device.PLGSASPage, device.GSASRun(page, count))
		set(n, device.PLGSASBack, back*device.PageSize)
		set(n, device.PLGSASEntry, device.GSASEntry{Protection: uint32(s.root), Valid: true, Present: present}.Encode())
	}
	for i := range 2 {
		n := &simulatedNode{Node: w.Node(i), id: device.NodeID(i), words: map[uint64]*[atomics.MaxValues]uint64{}}
		s.nodes = append(s.nodes, n)
		n.Operate = func(a *socgsas.Access) (atomics.Status, []uint64) { return s.operate(n, a) }
		n.OnThread = s.mail
		p, e := n.AttachEmpty(1000, 0x10000, 1)
		if e != nil {
			return nil, e
		}
		err = errors.Join(err, n.Window(device.PL).Write32(device.PLGSASCtrl, device.GSASEnable))
		enter(n, 0, simPages, 0, true)
		for range pick(20) {
			page := uint64(pick(40))
			enter(n, page, 1, page, false)
		}
		enter(n, s.root.Directory().Page(), 1, simPages, true)
		for k := i; k < clients; k += 2 {
			t := &simulatedThread{s: s, index: k, node: n, numbers: map[device.NodeID]uint16{}, life: -1, answer: make(chan atomics.Answer, 1)}
			iface := device.MailboxThread + k/2
			t.id = atomics.ThreadOf(n.id, iface)
			s.clients = append(s.clients, t)
			set(n, device.PLPktzProt+8*uint32(iface), device.PktzProt(uint32(s.root), p.Domain.Slot))
			set(n, device.PLMboxCfg+8*uint32(iface), device.ThreadMboxCfg(p.Domain.PDID, uint32(s.root)))
			set(n, device.PLPktzCfg+8*uint32(iface), packetizer.Config{PDID: p.Domain.PDID, Node: n.id, Interface: uint8(iface), GSAS: true, Enable: true}.Encode())
		}
		var drive func()
		drive = func() { // the driver brings in the pages that are wanted
			for {
				page, e := n.Window(device.PL).Read64(device.PLGSASWant)
				if err = errors.Join(err, e); e != nil || page == device.GSASNoPage {
					break
				}
				w.After(int64(pick(100_000)), func() { enter(n, page, 1, page, true) })
			}
			w.After(300_000, drive)
		}
		drive()
	}
	slices.SortFunc(s.clients, func(a, b *simulatedThread) int { return a.index - b.index })
	return s, err
}

// operate performs an operation of a node's unit, or of its driver.
func (s *simulated) operate(n *simulatedNode, a *socgsas.Access) (atomics.Status, []uint64) {
	switch a.Op {
	case atomics.Alive:
		for _, t := range s.clients {
			if uint64(t.id) == a.Args[0] && !t.over {
				return atomics.OK, []uint64{1}
			}
		}
		return atomics.OK, []uint64{0}
	case atomics.Free:
		return atomics.OK, nil
	case atomics.Alloc:
		if gsas.Address(a.Args[1]) == s.root.Directory() && !n.has {
			n.has = true
			return atomics.OK, []uint64{a.Args[1]}
		}
		page := n.next
		if a.Args[0] > simPages-page {
			return atomics.NoRoom, nil
		}
		n.next += a.Args[0]
		return atomics.OK, []uint64{uint64(gsas.At(n.id, page*device.PageSize))}
	}
	m := n.words[a.Back/32]
	if m == nil {
		m = new([atomics.MaxValues]uint64)
		n.words[a.Back/32] = m
	}
	shift := a.Back % 32 / 8
	var words [atomics.MaxValues]uint64
	copy(words[:], m[shift:])
	got := a.Op.Apply(&words, &a.Args)
	copy(m[shift:], words[:a.Op.Bytes()/8])
	return atomics.OK, got[:a.Op.Values()]
}

// mail passes on the answers that have come for threads.
func (s *simulated) mail(int) {
	for _, t := range s.clients {
		for {
			source, words, ok := t.node.SOC.TakeMail(t.id.Interface())
			if !ok {
				break
			}
			a, err := atomics.DecodeAnswer(words[:source.Words])
			to, _ := t.request.Address.Node()
			if err == nil && t.waits && source.Node == to && a.Number == t.numbers[to] && a.Status != atomics.Waiting {
				t.waits = false
				t.answer <- a
				s.turn()
			}
		}
	}
}

// turn lets the clients go on until all of them wait, and sends what they ask for.
func (s *simulated) turn() {
	synctest.Wait()
	for _, t := range s.clients {
		if t.asks {
			t.asks, t.waits = false, !t.over
			to, _ := t.request.Address.Node()
			t.numbers[to]++
			s.send(t, to, t.numbers[to])
		}
	}
}

// send sends the request of a thread, and again until there is an answer.
func (s *simulated) send(t *simulatedThread, to device.NodeID, number uint16) {
	ev := soc.Event{Kind: soc.MessageSent, Interface: t.id.Interface(), Number: number, Destination: packetizer.Destination(to, device.MailboxGSAS, 0)}
	ev.N = t.request.Encode(ev.Words[:])
	t.node.Event(&ev)
	s.world.After(simAskAgain, func() {
		if t.waits && t.numbers[to] == number {
			s.send(t, to, number)
		}
	})
}

// run runs the clients to their ends.
func (s *simulated) run(f func(t *simulatedThread) error) error {
	var all sync.WaitGroup
	for _, t := range s.clients {
		t.over = false
		all.Go(func() {
			err := f(t)
			if t.over = true; err != nil && !errors.Is(err, errDead) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.err = err
			}
		})
	}
	over := false
	var look func()
	look = func() { // as long as a client sleeps, its time passes with the world's
		time.Sleep(time.Duration(simLook))
		s.turn()
		if !over {
			s.world.After(simLook, look)
		}
	}
	s.turn()
	s.world.After(simLook, look)
	err := s.world.Run(s.world.Now()+int64(600e9), func() bool {
		over = s.err != nil || !slices.ContainsFunc(s.clients, func(t *simulatedThread) bool { return !t.over })
		return over
	})
	if err != nil { // end the goroutines, too
		for _, t := range s.clients {
			t.life = 0
			if t.waits {
				t.answer <- atomics.Answer{Status: atomics.Gone}
			}
		}
	}
	all.Wait()
	return errors.Join(err, s.err)
}

func (t *simulatedThread) do(op atomics.Op, at gsas.Address, args ...uint64) (v [4]uint64, err error) {
	if t.life == 0 {
		return v, errDead
	}
	t.request = atomics.Request{Op: op, Address: at}
	copy(t.request.Args[:], args)
	if t.life--; t.life == 0 { // what it asks for last may be done or not
		t.over = true
		t.asks = true
		return v, errDead
	}
	t.asks = true
	switch a := <-t.answer; a.Status {
	case atomics.OK:
		return a.Values, nil
	case atomics.NoRoom:
		return v, gsas.ErrRoom
	case atomics.Gone:
		return v, errDead
	default:
		return v, fmt.Errorf("%v at %v: %v", op, at, a.Status)
	}
}

func (t *simulatedThread) Load256(_ context.Context, at gsas.Address) ([4]uint64, error) {
	return t.do(atomics.Read256, at)
}

func (t *simulatedThread) Store256(_ context.Context, at gsas.Address, w [4]uint64) error {
	_, err := t.do(atomics.Write256, at, w[:]...)
	return err
}

func (t *simulatedThread) CompareStore256(_ context.Context, at gsas.Address, expected uint64, w [4]uint64) ([4]uint64, error) {
	return t.do(atomics.CWrite256, at, expected, w[0], w[1], w[2], w[3])
}

func (t *simulatedThread) FetchAdd(_ context.Context, at gsas.Address, n uint64) (uint64, error) {
	v, err := t.do(atomics.FetchAdd, at, n)
	return v[0], err
}

func (t *simulatedThread) Alloc(_ context.Context, node device.NodeID, pages uint64, hint gsas.Address) (gsas.Address, error) {
	v, err := t.do(atomics.Alloc, gsas.At(node, 0), pages, uint64(hint))
	return gsas.Address(v[0]), err
}

func (t *simulatedThread) Free(_ context.Context, at gsas.Address) error {
	_, err := t.do(atomics.Free, at)
	return err
}

func (t *simulatedThread) Alive(_ context.Context, thread uint32) (bool, error) {
	v, err := t.do(atomics.Alive, gsas.At(t.node.id, 0), uint64(thread))
	return v[0] != 0, err
}

func (t *simulatedThread) Directory() gsas.Address { return t.s.root.Directory() }

// number returns the number of the next event of a history.
func (s *simulated) number() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	return s.last
}

// record adds an operation that has ended. A put that failed may be done at any later time, or not.
func (s *simulated) record(op porcupine.Operation, err error) {
	if err == nil {
		op.Return = s.number()
	} else if op.Input.(dht.Input).Verb != "put" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = append(s.history, op)
}

// histories has four clients on few keys, which meet in elements and in containers. One of them may die.
func (s *simulated) histories(seed uint64) error {
	keys := dht.Colliding(seed, 4, int(seed%3))
	if err := s.run(func(t *simulatedThread) error {
		if t.index > 0 {
			return nil
		}
		_, err := dht.Create(context.Background(), t, "t", dht.Options{Nodes: []device.NodeID{0, 1}, Keys: 1})
		return err
	}); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if seed%2 == 1 {
		s.clients[s.random.IntN(4)].life = 1 + s.random.IntN(40)
	}
	err := s.run(func(t *simulatedThread) error {
		r := rand.New(rand.NewPCG(seed, uint64(10+t.index)))
		table, err := dht.Open(context.Background(), t, "t")
		for i := 0; i < 10 && err == nil; i++ {
			in := dht.Input{Key: keys[r.IntN(len(keys))], Verb: []string{"get", "get", "put", "put", "delete"}[r.IntN(5)], Value: uint64(t.index<<16 | i)}
			if t.life >= 0 && in.Verb == "delete" {
				in.Verb = "get" // the model does not have deletes of which nobody knows whether they found the key
			}
			op := porcupine.Operation{ClientId: t.index, Input: in, Call: s.number(), Return: 1 << 40}
			op.Output, err = in.Do(context.Background(), table)
			s.record(op, err)
		}
		return err
	})
	if err != nil {
		return err
	}
	if got := porcupine.CheckOperationsTimeout(dht.KeyModel, s.history, time.Minute); got != porcupine.Ok {
		return fmt.Errorf("the history is not linearizable: %v", got)
	}
	return nil
}

// TestSimulated: histories of keys over simulated nodes are linearizable, although messages are lost, doubled
// or late, and clients die. PFD_DHT is their number; PFD_SEED selects one.
func TestSimulated(t *testing.T) {
	first, count := uint64(0), uint64(100)
	if v, err := strconv.ParseUint(os.Getenv("PFD_DHT"), 10, 32); err == nil {
		count = v
	}
	if v, err := strconv.ParseUint(os.Getenv("PFD_SEED"), 10, 64); err == nil {
		first, count = v, 1
	}
	repeated := uint64(0)
	for seed := first; seed < first+count; seed++ {
		synctest.Test(t, func(t *testing.T) {
			s, err := newSimulated(seed, 4)
			if err == nil {
				err = s.histories(seed)
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			for _, n := range s.nodes {
				repeated += n.SOC.GSAS().Repeated
			}
		})
	}
	t.Logf("%d histories, %d requests repeated", count, repeated)
	if repeated == 0 && count >= 100 {
		t.Error("no message was lost")
	}
}
