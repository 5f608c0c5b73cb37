package rdma_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/exanet/pfd/rdma"
)

// A message of three words, and its receiver.
func ExampleEndpoint_Send() {
	ctx := context.Background()
	from, to, stop, err := pair(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	name, _ := to.Export(make([]byte, 8)) // names the process; the memory does not matter
	if _, err := from.Send(ctx, name, 0, 1914, 42); err != nil {
		fmt.Println(err)
		return
	}
	m, err := to.Receive(ctx)
	fmt.Println(m.Words[:m.N], "from node", m.Node, err)
	// Output:
	// [0 1914 42] from node 0 <nil>
}

// A receiver that looks first, and then waits in Go's poller, which costs no thread.
func ExampleEndpoint_Ring() {
	ctx := context.Background()
	from, to, stop, err := pair(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	memory := make([]byte, 4096)
	words := make([]uint64, 2) // completion words
	ring, err := to.Ring(words)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ring.Close()

	remote, _ := to.Export(memory)
	if _, err := from.Write(ctx, rdma.WriteRequest{
		Src: []byte("hello"), Dst: remote, Notify: &rdma.Notification{VA: rdma.VAOf(words), First: 5, Last: 1},
	}); err != nil {
		fmt.Println(err)
		return
	}
	for atomic.LoadUint64(&words[1]) != 1 {
		if err := ring.Wait(ctx); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Printf("%s\n", memory[:words[0]])
	// Output:
	// hello
}

// A peer that is not admitted reaches a window, and nothing else.
func ExampleEndpoint_Window() {
	ctx := context.Background()
	socket, stop, err := startPFD()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	from, err := rdma.Attach(ctx, rdma.Options{Socket: socket, Node: 0, Group: "clients"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer from.Close()
	to, err := rdma.Attach(ctx, rdma.Options{Socket: socket, Node: 1, Group: "servers"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer to.Close()

	memory := make([]byte, 8192)
	remote, _ := to.Export(memory)
	open, _ := to.Export(memory[:4096])
	window, err := to.Window(open, from.Info().PDID, rdma.RightWrite)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, offset := range []uint64{0, 4096} {
		t, err := from.Write(ctx, rdma.WriteRequest{Src: []byte("x"), Dst: remote, Offset: offset})
		if err == nil {
			err = t.Wait(ctx)
		}
		fmt.Println(offset, errors.Is(err, rdma.ErrDomain))
	}
	fmt.Println(window.Close())
	// Output:
	// 0 false
	// 4096 true
	// <nil>
}
