package rdma

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

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

	s := &stormState{e: e, peers: peers, own: own, count: count, left: (len(peers) - 1) * count, sent: map[uint32]parcel{}}
	for range peers {
		s.got = append(s.got, make([]bool, count))
	}
	for seq := range uint64(count) {
		for peer := range peers {
			if peer == own {
				continue
			}
			s.again = append(s.again, parcel{peer, seq})
			if err := s.send(ctx); err != nil {
				return err
			}
		}
	}
	go func() {
		in.Scan()
		cancel()
	}()
	for ctx.Err() == nil {
		if err := s.take(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		if err := s.send(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	if n := e.Stats().MessagesDropped; n != 0 {
		return fmt.Errorf("%d messages were dropped", n)
	}
	return nil
}

// stormState is the state of a process of a storm.
type stormState struct {
	e     *Endpoint
	peers []Remote
	own   int
	count int
	sent  map[uint32]parcel
	again []parcel // to be sent
	got   [][]bool
	left  int // to be received
}

// send sends the parcels of again. Before each it takes all messages that have arrived, so that
// the endpoint never has to drop any.
func (s *stormState) send(ctx context.Context) error {
	ended, end := context.WithCancel(ctx)
	end()
	for len(s.again) > 0 {
		for {
			err := s.take(ended)
			if errors.Is(err, context.Canceled) {
				break
			}
			if err != nil {
				return err
			}
		}
		p := s.again[len(s.again)-1]
		number, err := s.e.Send(ctx, s.peers[p.peer], 0, uint64(s.own), p.seq)
		switch {
		case err == nil:
			s.again = s.again[:len(s.again)-1]
			s.sent[number] = p
			delete(s.sent, number-1<<14) // a refusal names one of the last 2^14
		case !errors.Is(err, ErrRefused):
			return err
		}
	}
	return nil
}

// take takes a message, or a late refusal.
func (s *stormState) take(ctx context.Context) error {
	m, err := s.e.Receive(ctx)
	var r *RefusedError
	if errors.As(err, &r) {
		p, ok := s.sent[r.Number]
		if !ok {
			return fmt.Errorf("a refusal of message %d, which was not sent", r.Number)
		}
		delete(s.sent, r.Number)
		s.again = append(s.again, p)
		return nil
	}
	if err != nil {
		return err
	}
	from, seq := m.Words[1], m.Words[2]
	if m.N != 3 || from >= uint64(len(s.got)) || seq >= uint64(s.count) || m.Node != s.peers[from].Node || m.PDID != s.peers[from].PDID || m.Interface != s.peers[from].Interface {
		return fmt.Errorf("message %+v", m)
	}
	if s.got[from][seq] {
		return fmt.Errorf("message %d of process %d came twice", seq, from)
	}
	s.got[from][seq] = true
	if s.left--; s.left == 0 {
		fmt.Println("all")
	}
	return nil
}
