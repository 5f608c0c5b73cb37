// Counter counts in a word of the global shared address space, to which processes on two nodes add.
//
//	counter [-socket PATH] begin           makes the word, on node 0, and prints the token of its tree
//	counter [-socket PATH] add TOKEN N     adds N ones, from node 1, and prints the sum
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/rdma"
)

func main() {
	log.SetFlags(0)
	socket := flag.String("socket", "", "pfd's control socket; empty: the default one")
	node := flag.Int("node", -1, "node to attach to (default 0 for begin, 1 for add)")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	if err := run(ctx, *socket, *node, flag.Args()); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatalf("counter: %v", err)
	}
}

func run(ctx context.Context, socket string, node int, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "begin":
		return begin(ctx, socket, device.NodeID(max(node, 0)))
	case len(args) == 3 && args[0] == "add":
		token, err := gsas.ParseToken(args[1])
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return fmt.Errorf("%q is no number of ones to add", args[2])
		}
		if node < 0 {
			node = 1
		}
		return add(ctx, socket, device.NodeID(node), token, n)
	}
	return errors.New("usage: counter begin | add TOKEN N")
}

// attach attaches to a node. The process may have threads.
func attach(ctx context.Context, socket string, node device.NodeID) (*rdma.Endpoint, error) {
	return rdma.Attach(ctx, rdma.Options{Socket: socket, Node: node, Threads: true})
}

// begin makes a tree with a page for the word, and keeps it until it is interrupted.
func begin(ctx context.Context, socket string, node device.NodeID) error {
	ep, err := attach(ctx, socket, node)
	if err != nil {
		return err
	}
	defer ep.Close()
	t, err := gsas.NewThread(ep)
	if err != nil {
		return err
	}
	if _, err := t.Alloc(ctx, t.Node(), 1, t.Directory()); err != nil {
		return err
	}
	fmt.Println(t.Token())
	<-ctx.Done()
	return nil
}

// add adds to the word n times.
func add(ctx context.Context, socket string, node device.NodeID, token gsas.Token, n int) error {
	ep, err := attach(ctx, socket, node)
	if err != nil {
		return err
	}
	defer ep.Close()
	t, err := gsas.Join(ep, token)
	if err != nil {
		return err
	}
	var sum uint64
	for range n {
		if sum, err = t.FetchAdd(ctx, t.Directory(), 1); err != nil {
			return err
		}
	}
	fmt.Println(sum + 1)
	return nil
}
