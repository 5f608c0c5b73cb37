package rdma

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/exanet/pfd/device"
)

// StormEnv names the socket, the node, the process's index and the number of messages to each
// peer, for StormMain.
const StormEnv = "RDMA_TEST_STORM"

// StormMain is a process that sends numbered messages to each of its peers, whose names it reads,
// and sends those again that are refused. It writes a line once it has received each message of
// each peer once, and goes on until its input ends.
func StormMain() int {
	if err := storm(os.Getenv(StormEnv)); err != nil {
		fmt.Println("error:", err)
		return 1
	}
	return 0
}

// parcel is a message of a storm.
type parcel struct {
	peer int
	seq  uint64
}

func storm(args string) error {
	a := strings.Fields(args)
	node, _ := strconv.Atoi(a[1])
	own, _ := strconv.Atoi(a[2])
	count, _ := strconv.Atoi(a[3])
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	e, err := Attach(ctx, Options{Socket: a[0], Node: device.NodeID(node), AcceptGroup: true})
	if err != nil {
		return err
	}
	defer e.Close()
	name, err := e.ExportVA(1<<20, 1)
	if err != nil {
		return err
	}
	fmt.Println(name)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	if !in.Scan() {
		return errors.New("no peers")
	}
	var peers []Remote
	for _, s := range strings.Fields(in.Text()) {
		r, err := ParseRemote(s)
		if err != nil {
			return err
		}
		peers = append(peers, r)
	}

	s := &stormState{e: e, peers: peers, own: own, sent: map[uint32]parcel{}}
	failed := make(chan error, 2)
	var both sync.WaitGroup
	both.Go(func() { failed <- s.receive(ctx, count) })
	for seq := range uint64(count) {
		for peer := range peers {
			if peer != own {
				if err := s.send(ctx, parcel{peer, seq}); err != nil {
					return err
				}
			}
		}
	}
	ended := make(chan struct{})
	both.Go(func() {
		in.Scan()
		close(ended)
	})
	select {
	case err := <-failed:
		return err
	case <-ended:
		cancel()
	}
	both.Wait()
	if n := e.Stats().MessagesDropped; n != 0 {
		return fmt.Errorf("%d messages were dropped", n)
	}
	return nil
}

type stormState struct {
	e     *Endpoint
	peers []Remote
	own   int
	mu    sync.Mutex
	sent  map[uint32]parcel
}

// send sends a parcel, again while it is refused at once.
func (s *stormState) send(ctx context.Context, p parcel) error {
	for {
		s.mu.Lock() // so that a late refusal is looked up after its message is recorded
		number, err := s.e.Send(ctx, s.peers[p.peer], 0, uint64(s.own), p.seq)
		if err == nil {
			s.sent[number] = p
			delete(s.sent, number-1<<14) // a refusal names one of the last 2^14
		}
		s.mu.Unlock()
		if !errors.Is(err, ErrRefused) {
			return err
		}
	}
}

func (s *stormState) receive(ctx context.Context, count int) error {
	got := make([][]bool, len(s.peers))
	for i := range got {
		got[i] = make([]bool, count)
	}
	for left := (len(s.peers) - 1) * count; ; {
		m, err := s.e.Receive(ctx)
		var r *RefusedError
		switch {
		case errors.Is(err, context.Canceled):
			return nil
		case errors.As(err, &r):
			s.mu.Lock()
			p, ok := s.sent[r.Number]
			delete(s.sent, r.Number)
			s.mu.Unlock()
			if !ok {
				return fmt.Errorf("a refusal of message %d, which was not sent", r.Number)
			}
			if err := s.send(ctx, p); err != nil && ctx.Err() == nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		from, seq := m.Words[1], m.Words[2]
		if m.N != 3 || from >= uint64(len(got)) || seq >= uint64(count) || m.Node != s.peers[from].Node || m.PDID != s.peers[from].PDID || m.Interface != s.peers[from].Interface {
			return fmt.Errorf("message %+v", m)
		}
		if got[from][seq] {
			return fmt.Errorf("message %d of process %d came twice", seq, from)
		}
		got[from][seq] = true
		if left--; left == 0 {
			fmt.Println("all")
		}
	}
}
