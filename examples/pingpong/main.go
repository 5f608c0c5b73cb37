// Pingpong sends a message back and forth between two processes on two nodes, and prints how long
// a round takes. It starts the second process itself; the two exchange the names of their memory
// over that process's standard input and output.
//
//	pingpong [-socket PATH] [-rounds N] [-size BYTES]
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

var (
	socket = flag.String("socket", "", "pfd's control socket; empty: the default one")
	rounds = flag.Int("rounds", 1000, "how often the message goes there and back")
	size   = flag.Int("size", 64, "bytes of the message")
	second = flag.Bool("second", false, "be the second process")
)

// words is where the message begins, after the two completion words.
const words = 16

func main() {
	log.SetFlags(0)
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	run := first
	if *second {
		run = answer
	}
	if err := run(ctx); err != nil {
		log.Fatalf("pingpong: %v", err)
	}
}

// side is one of the two processes.
type side struct {
	ep   *rdma.Endpoint
	buf  []byte  // written by the peer
	last *uint64 // the number of the last message
	name rdma.Remote
	peer rdma.Remote
	out  []byte
}

func attach(ctx context.Context, node device.NodeID) (*side, error) {
	if *size < 1 {
		return nil, fmt.Errorf("a message of %d bytes: at least 1 is needed", *size)
	}
	ep, err := rdma.Attach(ctx, rdma.Options{Socket: *socket, Node: node})
	if err != nil {
		return nil, err
	}
	s := &side{ep: ep}
	if err := s.prepare(); err != nil {
		return nil, errors.Join(err, ep.Close())
	}
	return s, nil
}

func (s *side) prepare() error {
	in, err := s.ep.Alloc(words + *size)
	if err != nil {
		return err
	}
	out, err := s.ep.Alloc(*size)
	if err != nil {
		return err
	}
	s.buf, s.out = in.Bytes(), out.Bytes()
	if s.last, err = rdma.Word(s.buf, 8); err != nil {
		return err
	}
	s.name, err = s.ep.Export(s.buf)
	return err
}

// meet writes the name of this process's memory and reads the peer's.
func (s *side) meet(w io.Writer, r io.Reader) error {
	if _, err := fmt.Fprintln(w, s.name); err != nil {
		return err
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		return fmt.Errorf("no answer from the other process: %w", err)
	}
	s.peer, err = rdma.ParseRemote(strings.TrimSpace(line))
	return err
}

func (s *side) send(ctx context.Context, number int) error {
	t, err := s.ep.Write(ctx, rdma.WriteRequest{
		Src: s.out, Dst: s.peer, Offset: words, Urgent: true,
		Notify: &rdma.Notification{Last: uint64(number)},
	})
	if err != nil {
		return err
	}
	return t.Wait(ctx)
}

func (s *side) receive(ctx context.Context, number int) error {
	return s.ep.WaitNotification(ctx, s.last, uint64(number))
}

func first(ctx context.Context) (err error) {
	s, err := attach(ctx, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.ep.Close()) }()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the other process if this one fails
	other := exec.CommandContext(ctx, exe, "-second", "-socket", *socket, "-rounds", fmt.Sprint(*rounds), "-size", fmt.Sprint(*size))
	other.Stderr = os.Stderr
	in, err := other.StdinPipe()
	if err != nil {
		return err
	}
	out, err := other.StdoutPipe()
	if err != nil {
		return err
	}
	if err := other.Start(); err != nil {
		return err
	}
	if err := s.meet(in, out); err != nil {
		return err
	}
	start := time.Now()
	for i := range *rounds {
		for j := range s.out {
			s.out[j] = byte(i + j)
		}
		if err := s.send(ctx, i+1); err != nil {
			return err
		}
		if err := s.receive(ctx, i+1); err != nil {
			return err
		}
		if string(s.buf[words:]) != string(s.out) {
			return fmt.Errorf("round %d: the answer differs from the message", i+1)
		}
	}
	took := time.Since(start)
	if err := other.Wait(); err != nil {
		return fmt.Errorf("the other process: %w", err)
	}
	fmt.Printf("%d rounds of %d bytes, %v a round\n", *rounds, *size, took/time.Duration(max(*rounds, 1)))
	return nil
}

// answer sends every message back.
func answer(ctx context.Context) (err error) {
	s, err := attach(ctx, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.ep.Close()) }()
	if err := s.meet(os.Stdout, os.Stdin); err != nil {
		return err
	}
	for i := range *rounds {
		if err := s.receive(ctx, i+1); err != nil {
			return err
		}
		copy(s.out, s.buf[words:])
		if err := s.send(ctx, i+1); err != nil {
			return err
		}
	}
	return nil
}
